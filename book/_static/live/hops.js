// Chapter 12: how an induction head finds the next word, hop by hop.
"use strict";

live.figure("hops", (find, figure) => {
  const { words, period, heads, first, second, silent, next } = live.data.hops, { print } = live;
  const [said, svg, box] = [".said", "svg", "[name=silent]"].map(find), quoted = word => `<em>${word}</em>`;
  let place = words.length - 1, step = 2;

  const arcs = (from, weights, kind) => weights.map((weight, to) => weight < 0.05 || to === from ? "" :
    `<path class="${kind}" d="M0 ${from + 0.5}C${12 * Math.sqrt(from - to) + 20} ${from + 0.5} ${12 * Math.sqrt(from - to) + 20} ${to + 0.5} 0 ${to + 0.5}" stroke-width="${(1 + 5 * weight).toFixed(1)}"/>`).join("");

  const show = () => {
    const after = place - period + 1, [word, found, off] = [words[place], words[after], box.checked], chosen = place - period;
    const hop = [first[chosen], (off ? silent : second)[chosen]], answer = next[off ? "silent" : "whole"][chosen];
    const told = [
      ["The question", `The row is read up to the second ${quoted(word)}. What comes next? After the first ${quoted(word)} came ${quoted(found)}.`],
      ["Hop 1", off ? `Layer 0 is silent: for each word its heads say the same in every text, their mean over 100 texts. ${quoted(found)} learns nothing of ${quoted(word)}.` :
        `In layer 0, head ${heads[0]} of ${quoted(found)} gives the word before, ${quoted(word)}, a weight of ${print(hop[0][after - 1])}, and writes down: before me stood ${quoted(word)}.`],
      ["Hop 2", `In layer 1, head ${heads[1]} of the second ${quoted(word)} looks for the word whose key says that ${quoted(word)} stood before it. ${quoted(found)} gets a weight of ${print(hop[1][after])}.`],
      ["The word", `The head hands over what it has found, and the model says ${quoted(answer[0])}, with a probability of ${print(answer[1])}. ` +
        (answer[0] === found ? `That is right.` : `Right is ${quoted(found)}.`)],
    ][step];
    said.innerHTML = `<b>${told[0]}.</b> ${told[1]}`;
    const weights = step === 0 ? null : step === 1 ? (off ? null : hop[0]) : hop[1];
    live.words(find(".source"), words.slice(0, place + 1), weights && words.map((_, k) => weights[k] ?? 0));
    [...find(".source").children].forEach((item, k) => item.classList.toggle("asks", k === (step === 1 ? after : place) || (step === 0 && k === chosen)));
    live.tall(svg, place + 1);
    svg.innerHTML = (step > 0 && !off ? arcs(after, hop[0], step > 1 ? "one past" : "one now") : "") + (step > 1 ? arcs(place, hop[1], "two now") : "");
    live.chips(find("[data-part=place]"), "place", words.slice(period), chosen);
    find("[value=back]").disabled = step === 0;
    find("[value=next]").disabled = step === 3;
  };
  const go = by => {
    const before = step;
    step = Math.max(0, Math.min(3, step + by));
    return step !== before;
  };
  const halt = live.steps(figure, go, show, 2000);
  figure.onchange = ({ target }) => {
    halt();
    if (target.name === "place") place = period + [...target.closest("span").children].indexOf(target.parentElement);
    show();
  };
  show();
});
