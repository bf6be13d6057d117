// Chapters 2 and 7: a sentence of the reader's; greedy, by beam, or with a teacher; a wrong word put in.
"use strict";

live.figure("translator", async (find, figure) => {
  const model = await live.load(figure.dataset.models);
  const [input, svg, target, verdict, said] = ["input[name=sentence]", "svg", ".target", ".verdict", ".said"].map(find);
  const [told, head] = ["told", "head"].map(name => find(`select[name=${name}]`));
  const how = () => find("input[name=how]:checked").value;
  let asked, written, chosen = 0, forced = {}, stop = () => {};

  const fill = (select, names, first) => {
    select.innerHTML = select.options[0].outerHTML + names.map((name, i) => `<option value="${first + i}">${name}</option>`).join("");
  };
  fill(told, model.french.words.slice(3), 3);
  fill(head, Array.from({ length: 2 * model.heads }, (_, i) =>
    `layer ${1 + Math.floor(i / model.heads)}, head ${1 + i % model.heads}`), 0);

  /** One row of weights a written word: of one head, or the average of all. */
  const look = place => {
    const heads = written.looks[place];
    if (head.value) return heads[Number(head.value)];
    return heads[0].map((_, key) => heads.reduce((sum, weights) => sum + weights[key] / heads.length, 0));
  };

  /** What the model writes. With a teacher it reads the right words (and the reader's), and says the next one. */
  const run = () => {
    const source = model.english.encode(asked.source);
    if (how() === "teacher" && asked.target) {
      const right = [...model.french.encode(asked.target), live.EOS];
      const taught = live.write(model, source, { ...right, ...forced }, right.length);
      return { ...taught, words: taught.logits.map(row => model.french.words[row.indexOf(Math.max(...row))]) };
    }
    const found = how() === "beam" ? [...live.beam(model, source, 4, forced), live.EOS] : {};
    const result = live.write(model, source, { ...forced, ...found });
    return { ...result, words: model.french.decode(result.words) };
  };

  const choose = place => {
    chosen = Math.max(0, Math.min(place, target.children.length - 1));
    if (!target.children.length) return;
    target.children[chosen].firstChild.checked = true;
    told.value = forced[chosen] ?? "";
    live.words(find(".source"), asked.source, look(chosen));
    live.lines(svg, Array.from(target.children, (_, place) => look(place)), asked.source.length, chosen);
  };

  const tell = () => {
    const right = asked.target, own = written.words.filter((_, place) => !(place in forced) || how() === "teacher");
    if (!right) return `${written.words.length} words${written.ended || how() === "teacher" ? "" : ", and it does not stop"}.`;
    if (how() === "teacher") {
      const wrong = written.words.filter((word, place) => word !== [...right, "<eos>"][place]).length;
      return `It has read the right words${Object.keys(forced).length ? " and yours" : ""}; ${wrong || "none"} of its ${own.length} next words ${wrong === 1 ? "is" : "are"} wrong.`;
    }
    const place = live.error(written.words, right);
    const put = Object.keys(forced).length ? "With your word in it: " : "";
    if (place < 0) return `${put}Right, all ${right.length} words.`;
    return `${put}Wrong from word ${place + 1} on; right is “${right.slice(place).join(" ") || "to stop"}”.`;
  };

  const show = shown => {
    live.list(target, written.words.slice(0, shown), "<label><input type='radio' name='look'><span></span></label>").forEach((item, place) => {
      item.lastChild.textContent = written.words[place];
      const right = asked.target && [...asked.target, "<eos>"][place];
      item.classList.toggle("wrong", Boolean(right) && written.words[place] !== right);
      item.classList.toggle("told", place in forced && how() !== "teacher");
    });
    choose(shown === written.words.length ? chosen : shown - 1);
    verdict.textContent = shown === written.words.length ? tell() : "\u00a0";
  };

  const translate = moving => {
    stop();
    const read = live.read(input.value, model.english.words);
    said.textContent = read.error || (how() === "teacher" && !read.target ? "A teacher needs the right answer: type a number in digits." : "");
    if (read.error) return;
    asked = read;
    written = run();
    const count = written.words.length;
    if (moving) stop = live.play(count, show); else show(count);
    if (moving) said.textContent = `${asked.source.join(" ")}: ${written.words.join(" ")}.`;
  };

  figure.onsubmit = () => { forced = {}; chosen = 99; translate(true); return false; };
  find("[data-part=how]").onchange = () => translate(false);
  head.onchange = () => choose(chosen);
  told.onchange = () => {
    delete forced[chosen];
    if (told.value) forced[chosen] = Number(told.value);
    translate(false);
    said.textContent = verdict.textContent;
  };
  target.onchange = event => choose([...target.children].indexOf(event.target.parentElement));
  target.onpointerover = event => {
    const label = event.pointerType === "mouse" && event.target.closest("label");
    if (label) choose([...target.children].indexOf(label));
  };
  input.value = input.defaultValue;
  chosen = Number(figure.dataset.chosen);
  translate(false);
});
