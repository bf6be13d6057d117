// Numbers to look at: a vector as a strip of cells, weights as a table, words to choose; and steps from one look to the next.
"use strict";

/** @param {number} value */
live.print = (value, digits = 2) => value.toFixed(digits).replace("-", "−");

/** @param {string} word as a page may hold it */
live.plain = word => word.replace("<", "&lt;");

/** Vectors on one scale: filled cells, teal above zero and orange below, and the first numbers.
 * @param {[string, Float64Array][]} vectors name and numbers @returns {string} */
live.strips = vectors => {
  const most = Math.max(...vectors.flatMap(([, x]) => Array.from(x, Math.abs)));
  const cell = (value, j, x) => `#${value < 0 ? "c8590c" : "12807a"}${Math.round(255 * Math.abs(value) / most).toString(16).padStart(2, "0")} 0 ${(100 * (j + 1) / x.length).toFixed(1)}%`;
  return vectors.map(([name, x]) => `<p class="vector"><span>${name} (${x.length})</span><i style="background:linear-gradient(90deg,${Array.from(x, (value, j) => cell(value, j, x))})"></i>` +
    `<span>${Array.from(x.slice(0, 4), value => live.print(value)).join("\u2002")} …</span></p>`).join("");
};

/** @param {string[]} columns @param {[string, ArrayLike<number>, boolean][]} rows name, numbers, whether they are shares of one @returns {string} */
live.table = (columns, rows) => `<table><thead><tr><td></td>${columns.map(word => `<th scope="col">${live.plain(word)}</th>`).join("")}</tr></thead><tbody>` +
  rows.map(([name, row, shares]) => `<tr><th scope="row">${name}</th>${Array.from(row, value =>
    `<td${shares ? ` style="--w:${Math.round(100 * value)}"` : ""}>${live.print(value)}</td>`).join("")}</tr>`).join("") + "</tbody></table>";

/** Words of which one is chosen. @param {Element} parent @param {string} name @param {string[]} words @param {number} chosen */
live.chips = (parent, name, words, chosen) =>
  live.list(parent, words, `<label><input type="radio" name="${name}"><span></span></label>`).forEach((item, i) => {
    item.lastChild.textContent = words[i];
    item.firstChild.checked = i === chosen;
  });

/** Buttons “back”, “next” and “play”. Who wants no motion is at the end at once.
 * @param {HTMLElement} figure @param {(by: number) => boolean} go whether it went on @param {() => void} show
 * @returns {() => void} stops it */
live.steps = (figure, go, show, pause = 900) => {
  let timer = null;
  const button = figure.querySelector("[value=play]");
  const halt = () => { clearInterval(timer); timer = null; button.textContent = "play"; };
  const press = {
    back: () => { halt(); go(-1); },
    next: () => { halt(); go(1); },
    play: () => {
      if (timer) return halt();
      if (matchMedia("(prefers-reduced-motion: reduce)").matches) { while (go(1)); return; }
      timer = setInterval(() => { if (!go(1)) halt(); show(); }, pause);
      button.textContent = "stop";
    },
  };
  figure.addEventListener("click", ({ target }) => { if (press[target.value]) { press[target.value](); show(); } });
  return halt;
};
