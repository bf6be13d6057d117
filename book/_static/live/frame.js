// What the live figures share: how they begin, read a number, draw words, lines and tables.
"use strict";

live.data = {};  // what a figure shows from the package: its own script file fills it

/** Begin every figure of this name when its reader comes near. Until then, and where a script fails,
 * its first state stays.
 * @param {string} name
 * @param {(find: (place: string) => any, figure: HTMLElement) => any} begin */
live.figure = (name, begin) => document.querySelectorAll(`[data-live="${name}"]`).forEach(figure => {
  const near = new IntersectionObserver(async seen => {
    if (!seen.some(each => each.isIntersecting)) return;
    near.disconnect();
    await begin(place => figure.querySelector(place), figure);
    figure.querySelectorAll("fieldset").forEach(each => { each.disabled = false; });
    figure.dataset.ready = "";
  }, { rootMargin: "50%" });
  near.observe(figure);
});

/** A number in digits, or English number words.
 * @param {string} text @param {string[]} known words
 * @returns {{source: string[], target?: string[], error?: string}} `target`: the right French, of digits */
live.read = (text, known) => {
  const digits = text.replace(/[\s,.'’_]/g, "");
  if (/^\d+$/.test(digits)) {
    if (digits.length > 12) return { source: [], error: "The translators learned numbers of up to twelve digits." };
    return { source: numberNames.en(Number(digits)), target: numberNames.fr(Number(digits)) };
  }
  const source = text.toLowerCase().match(/\p{L}+/gu) || [];
  const unknown = source.filter(word => !known.slice(3).includes(word));
  if (unknown.length) return { source, error: `The translators know ${known.length - 3} English words; “${unknown[0]}” is none of them.` };
  if (!source.length) return { source, error: "Type a number, or English number words." };
  if (source.length > 24) return { source, error: "At most 24 words, please." };
  return { source };
};

/** Make as many children as there are items; what is there stays, so that the focus does, too.
 * @param {Element} parent @param {any[]} items @param {string} html of one child */
live.list = (parent, items, html) => {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.insertAdjacentHTML("beforeend", html);
  return [...parent.children];
};

/** Words of the source with the weights of one look. @param {Element} list @param {string[]} words @param {ArrayLike<number>} [weights] */
live.words = (list, words, weights) => live.list(list, words, "<li><i></i><span></span></li>").forEach((item, place) => {
  item.firstChild.textContent = weights ? weights[place].toFixed(2) : "";
  item.lastChild.textContent = words[place];
  item.lastChild.style.setProperty("--w", weights ? Math.round(100 * weights[place]) : 0);
});

/** Lines from the source's words (left) to the target's (right), as thick as the weights.
 * @param {Element} svg @param {ArrayLike<number>[]} looks one a target word @param {number} source words @param {number} chosen */
live.lines = (svg, looks, source, chosen) => {
  live.tall(svg, Math.max(source, looks.length));
  svg.innerHTML = looks.flatMap((weights, to) => Array.from(weights, (weight, from) => weight < 0.05 ? "" :
    `<path d="M0 ${from + 0.5}C50 ${from + 0.5} 50 ${to + 0.5} 100 ${to + 0.5}" stroke-width="${(1 + 4 * weight).toFixed(1)}"` +
    ` stroke-opacity="${((to === chosen ? 0.4 : 0.08) + (to === chosen ? 0.6 : 0.22) * weight).toFixed(2)}"/>`)).join("");
};

/** @param {Element} svg @param {number} rows words on the longer side */
live.tall = (svg, rows) => {
  svg.setAttribute("viewBox", `0 0 100 ${rows}`);
  svg.style.height = `calc(${rows} * var(--row))`;
};

/** Show 1, 2, … `count` words, one after the other; all at once for who wants no motion.
 * @param {number} count @param {(shown: number) => void} show @returns {() => void} stops it */
live.play = (count, show) => {
  let shown = matchMedia("(prefers-reduced-motion: reduce)").matches ? count - 1 : 0;
  const timer = setInterval(step, 350);
  function step() {
    show(++shown);
    if (shown >= count) clearInterval(timer);
  }
  step();
  return () => { clearInterval(timer); show(count); };
};

/** Where a translation leaves the right one; -1 if nowhere. @param {string[]} written @param {string[]} right */
live.error = (written, right) => {
  const place = [...right, ""].findIndex((word, i) => (written[i] ?? "") !== word);
  return place < 0 && written.length > right.length ? right.length : place;
};
