// The home page: the same number through one vector (chapter 1) and with attention (chapter 2).
"use strict";

live.figure("translators", async (find, figure) => {
  const [narrow, looking] = await Promise.all(["fixed-64", "additive"].map(live.load));
  const input = find("input[name=number]"), said = find(".said");
  const parts = ["fixed-64", "additive"].map(name => {
    const part = find(`[data-part=${name}]`), at = place => part.querySelector(place);
    return { source: at(".source"), svg: at("svg"), target: at(".target"), verdict: at(".verdict") };
  });
  let stop = () => {};

  /** Every word into the vector, every word out of it; the vector's 64 numbers between. */
  const squeeze = (svg, source, shown, vector) => {
    const rows = Math.max(source, shown), middle = rows / 2;
    live.tall(svg, rows);
    const lines = (count, line) => Array.from({ length: count }, (_, i) => `<path d="${line(i + 0.5)}"/>`).join("");
    svg.innerHTML = `<g class="vector">${lines(source, y => `M0 ${y}C30 ${y} 20 ${middle} 44 ${middle}`)}` +
      `${lines(shown, y => `M56 ${middle}C80 ${middle} 70 ${y} 100 ${y}`)}</g>` + Array.from(vector, (value, i) =>
      `<rect x="44" width="12" y="${(rows * (0.1 + i / 80)).toFixed(3)}" height="${(rows / 80).toFixed(3)}" opacity="${Math.abs(value).toFixed(2)}"/>`).join("");
  };

  const verdict = (written, right, ended) => {
    const place = live.error(written, right);
    if (place < 0) return `Right, all ${right.length} words.`;
    if (!ended) return "Wrong: it does not stop.";
    return `Wrong from word ${place + 1} on: ${written[place] ? `it writes “${written[place]}”` : "it stops"}` +
      `; right is ${right[place] ? `“${right.slice(place).join(" ")}”` : "to stop"}.`;
  };

  const translate = (text, moving) => {
    stop();
    const { source, target, error } = live.read(text, looking.english.words);
    said.textContent = error || "";
    if (error) return;
    const [blind, seeing] = [narrow, looking].map(model => {
      const written = live.write(model, model.english.encode(source));
      return { ...written, words: model.french.decode(written.words) };
    });
    const vector = narrow.start(narrow.english.encode(source)), looks = seeing.looks.map(([weights]) => weights);
    const [one, two] = parts;
    const mark = (item, written, place) => item.classList.toggle("wrong", Boolean(target) && written.words[place] !== target[place]);

    const choose = (shown, chosen) => {
      live.words(two.source, source, looks[chosen]);
      live.lines(two.svg, looks.slice(0, shown), source.length, chosen);
      two.target.children[chosen].querySelector("input").checked = true;
    };
    const show = shown => {
      live.words(one.source, source);
      squeeze(one.svg, source.length, Math.min(shown, blind.words.length), vector);
      live.list(one.target, blind.words.slice(0, shown), "<li><span></span></li>").forEach((item, place) => {
        item.firstChild.textContent = blind.words[place];
        mark(item, blind, place);
      });
      const words = seeing.words.slice(0, shown);
      live.list(two.target, words, "<label><input type='radio' name='look'><span></span></label>").forEach((item, place) => {
        item.lastChild.textContent = words[place];
        mark(item, seeing, place);
      });
      choose(words.length, words.length - 1);
      const done = shown >= Math.max(blind.words.length, seeing.words.length) && target;
      [blind, seeing].forEach((written, i) => {
        parts[i].verdict.textContent = done ? verdict(written.words, target, written.ended) : "\u00a0";
      });
      if (done && moving) said.textContent = `${source.join(" ")}: ${target.join(" ")}.`;
    };
    two.target.onchange = event => choose(two.target.children.length, [...two.target.children].indexOf(event.target.parentElement));
    two.target.onpointerover = event => {
      const label = event.pointerType === "mouse" && event.target.closest("label");
      if (label) choose(two.target.children.length, [...two.target.children].indexOf(label));
    };
    const count = Math.max(blind.words.length, seeing.words.length);
    if (moving) stop = live.play(count, show); else show(count);
  };

  figure.onsubmit = () => { translate(input.value, true); return false; };
  figure.onclick = event => {
    if (event.target.type === "button") translate(input.value = event.target.textContent, true);
  };
  input.value = input.defaultValue;  // a reloading browser may have kept another
  translate(input.value, false);
});
