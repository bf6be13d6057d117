// Chapter 5: which of the Transformer's 24 heads are needed? Switch them off and measure.
"use strict";

live.figure("surgery", async (find, figure) => {
  const model = await live.load("transformer");
  const tests = live.data.surgery.map(number =>
    [model.english.encode(numberNames.en(number)), model.french.encode(numberNames.fr(number))]);
  const boxes = [...figure.querySelectorAll("input[type=checkbox]")];
  const [input, said] = [find("input[name=sentence]"), find(".said")];
  let turn = 0;

  const translate = () => {
    const { source, target, error } = live.read(input.value, model.english.words);
    if (error) return error;
    const { words, ended } = live.write(model, model.english.encode(source));
    const written = model.french.decode(words);
    live.list(find(".written"), written, "<li><span></span></li>").forEach((item, place) => {
      item.firstChild.textContent = written[place];
      item.classList.toggle("wrong", Boolean(target) && written[place] !== target[place]);
    });
    const right = target && live.error(written, target) < 0;
    find(".verdict").textContent = !target ? "" : right ? "Right." : `Wrong${ended ? "" : ", and it does not stop"}; right is “${target.join(" ")}”.`;
    return "";
  };

  /** Exact match on the chapter's test numbers, a few at a time, so that the page stays awake. */
  const measure = async () => {
    const mine = ++turn, off = boxes.length - boxes.filter(box => box.checked).length;
    let right = 0;
    for (let seen = 0; seen < tests.length; seen++) {
      right += live.right(model, ...tests[seen]);
      if (seen % 5 === 4) {
        find(".share").textContent = `measuring: ${right} of ${seen + 1} right`;
        find(".bar span").style.setProperty("--w", (100 * right / tests.length).toFixed(1));
        await new Promise(resume => setTimeout(resume));
        if (mine !== turn) return;
      }
    }
    find(".share").textContent = `${off} silent: ${(100 * right / tests.length).toFixed(1)} % of ${tests.length} new numbers right`;
    said.textContent = find(".share").textContent + ".";
  };

  const change = () => {
    model.silent = new Set(boxes.filter(box => !box.checked).map(box => box.value));
    said.textContent = translate();
    return measure();
  };

  figure.onsubmit = () => { said.textContent = translate(); return false; };
  figure.onchange = event => { if (event.target.type === "checkbox") change(); };
  figure.onclick = event => {
    if (event.target.type !== "button") return;
    const silent = { encoder: value => value.startsWith("encoder"), cross: value => /cross.*[^0]$/.test(value) }[event.target.value];
    boxes.forEach(box => { box.checked = !silent || !silent(box.value); });
    change();
  };
  input.value = input.defaultValue;
  boxes.forEach(box => { box.checked = box.defaultChecked; });
  await change();
  said.textContent = "";
});
