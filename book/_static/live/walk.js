// Chapter 7: from box to box through the Transformer, with the numbers that go in and come out.
"use strict";

live.figure("walk", async (find, figure) => {
  const model = await live.load(figure.dataset.models), { heads } = model, { print } = live;
  const [input, stops, said, numbers] = ["input[name=sentence]", ".stops", ".said", ".scroll"].map(find);
  const range = n => Array.from({ length: n }, (_, i) => i), quoted = word => `<i>${live.plain(word)}</i>`;
  const mean = x => x.reduce((sum, value) => sum + value, 0) / x.length, size = x => Math.sqrt(x.length * mean(x.map(value => value * value)));
  const spread = x => `mean ${print(mean(x))}, standard deviation ${print(size(x.map(value => value - mean(x))) / Math.sqrt(x.length))}`;

  // A stop: its side and layer, what it is, and its name in the package.
  const layers = (side, parts) => [1, 2].flatMap(layer => parts.flatMap((part, p) => ["norm", part, "sum"].map(kind =>
    ({ side, layer, kind, part, name: `${side}.${layer - 1}.${kind === part ? part : kind + (p + 1)}` }))));
  const all = [
    { side: "encoder", kind: "words" }, { side: "encoder", kind: "embed", name: "source" },
    ...layers("encoder", ["self_attention", "network"]), { side: "encoder", kind: "memory", name: "encoder_norm" },
    { side: "decoder", kind: "words" }, { side: "decoder", kind: "embed", name: "target" },
    ...layers("decoder", ["self_attention", "cross_attention", "network"]), { side: "decoder", kind: "norm", name: "decoder_norm" },
    { side: "decoder", kind: "linear" }, { side: "decoder", kind: "next" },
  ];
  const label = { words: "words", embed: "embed + place", norm: "norm", sum: "+", self_attention: "self-attention", cross_attention: "cross-attention",
    network: "feed-forward", memory: "norm: memory", linear: "linear", next: "softmax" };
  const memory = all.findIndex(stop => stop.kind === "memory"), first = memory + 1, last = all.length - 1;
  let source, written, made, at = all.findIndex(stop => stop.name === "decoder.1.cross_attention"), place = 2, step = 1;

  /** What the model makes of a sentence, part by part: name -> one entry a word. */
  const read = words => {
    [source, made] = [words, {}];
    model.trace = (name, value) => (made[name] ??= []).push(value);
    written = live.write(model, model.english.encode(words));
    written.names = [...model.french.decode(written.words), ...(written.ended ? ["<eos>"] : [])];
    written.read = ["<bos>", ...written.names.slice(0, -1)];
  };

  /** The vectors, the table and the sentence of each kind of stop. @type {Object<string, (k: number) => any>} */
  const told = {
    words: (k, { known, word, id }) => ({ told: `${word} is word ${id} of ${known.length} in the vocabulary.` +
      (k === first ? " For the words before it, keys and values have been kept." : "") }),
    embed: (k, { name, word, id, i, out }) => {
      const row = model.weights[`${name}_embedding.weight`][id].map(x => x * Math.sqrt(out.length));
      return { told: `The row of ${word} in the table of embeddings, times √${row.length}, plus the sines and cosines of place ${i}.`,
        vectors: [["embedding", row], ["place", out.map((x, j) => x - row[j])], ["sum", out]] };
    },
    norm: (k, { before, out }) => ({ told: `In: ${spread(before)}. Out: ${spread(out)}.`, vectors: [["in", before], ["out", out]] }),
    memory: (k, it) => ({ ...told.norm(k, it), told: `The memory of ${it.word}: every decoder layer makes its key and its value from it.` }),
    sum: (k, { word, before, out, value, part }) => ({ vectors: [["before", value(k - 3)], [label[part], before], ["sum", out]],
      told: `The vector of ${word} so far has length ${print(size(value(k - 3)), 1)}, what the ${label[part]} adds ${print(size(before), 1)}, the sum ${print(size(out), 1)}.` }),
    network: (k, { name, before, out, i }) => {
      const hidden = made[name.replace("network", "hidden")][i];
      return { vectors: [["in", before], ["hidden", hidden], ["out", out]],
        told: `From ${out.length} numbers to ${hidden.length} and back. ReLU leaves ${hidden.filter(x => x > 0).length} of the ${hidden.length} and makes the others 0.` };
    },
    linear: (k, { before, best, known, logits }) => ({ vectors: [["in", before]], table: [best.map(id => known[id]), [["score", best.map(id => logits[id])]]],
      told: `A score for each of ${logits.length} words; here are the five highest.` }),
    next: (k, { best, known, logits, i }) => ({
      table: [best.map(id => known[id]), [["score", best.map(id => logits[id])], ["share", best.map(id => live.softmax(logits)[id]), true]]],
      told: `Softmax makes shares of the scores. The largest is that of ${quoted(known[best[0]])}: ${i + 1 < written.names.length ? "it is written, and read next" : "the sentence is finished"}.` }),
    attention: (k, { side, kind, name, word, i, words, before }) => {
      const { query, keys, looks, output } = made[name][i], d = query.length / heads, asked = kind === "cross_attention" ? source : words.slice(0, keys.length);
      const [head, key] = range(heads).flatMap(h => range(asked.length).map(j => [h, j])).reduce((a, b) => looks[b[0]][b[1]] > looks[a[0]][a[1]] ? b : a);
      const score = range(d).reduce((sum, j) => sum + query[head * d + j] * keys[key][head * d + j], 0);
      return { vectors: [["in", before], ["out", output]], table: [asked, looks.map((row, h) => [`head ${h + 1}`, row, true])],
        told: `${word} asks ${kind === "cross_attention" ? "the source" : side === "decoder" ? "the words so far" : "all words"}. In head ${head + 1} its query times the key of ` +
          `${quoted(asked[key])} is ${print(score, 1)}; divided by √${d}, it is ${print(score / Math.sqrt(d), 1)}. Softmax makes it a weight of ${print(looks[head][key])}.` };
    },
  };
  const contents = k => {
    const { side, kind, name } = all[k], i = side === "encoder" ? place : step, words = side === "encoder" ? source : written.read;
    const known = model[side === "encoder" ? "english" : "french"].words, logits = written.logits[i];
    const value = k => all[k]?.name && (made[all[k].name][i].output ?? made[all[k].name][i]);
    const best = range(logits?.length ?? 0).sort((a, b) => logits[b] - logits[a]).slice(0, 5);
    const it = { ...all[k], i, words, known, logits, best, value, before: value(k - 1), out: value(k), id: known.indexOf(words[i]), word: quoted(words[i]) };
    return told[kind.endsWith("attention") ? "attention" : kind](k, it);
  };
  const parents = k => ({ words: [], sum: [k - 1, k - 3], cross_attention: [k - 1, memory] }[all[k].kind] ?? [k - 1]);

  const show = () => {
    const { vectors = [], table, told } = contents(at), lit = parents(at), { side, layer, kind } = all[at];
    stops.querySelectorAll("button").forEach((button, k) => {
      button.setAttribute("aria-pressed", k === at);
      button.classList.toggle("lit", lit.includes(k));
      button.tabIndex = k === at ? 0 : -1;
    });
    live.chips(find("[data-part=source]"), "source", source, place);
    live.chips(find("[data-part=target]"), "target", written.names, step);
    said.innerHTML = `<b>${side === "encoder" ? "Encoder" : "Decoder"}${layer ? `, layer ${layer}` : ""}: ${kind === "sum" ? "sum" : label[kind]}` +
      `${side === "decoder" ? `, before ${quoted(written.names[step])} is written` : ""}.</b> ${told}`;
    numbers.innerHTML = live.strips(vectors) + (table ? live.table(...table) : "");
    find("[value=back]").disabled = at === 0;
    find("[value=next]").disabled = at === last && step === written.names.length - 1;
  };
  const go = by => {
    const before = [at, step].join();
    if (by > 0 && at === last) [at, step] = step + 1 < written.names.length ? [first, step + 1] : [at, step];
    else if (by < 0 && at === first && step > 0) [at, step] = [last, step - 1];
    else [at, step] = [Math.max(0, at + by), by > 0 && at === memory ? 0 : step];
    return before !== [at, step].join();
  };
  const halt = live.steps(figure, go, show);

  stops.innerHTML = ["encoder", "decoder"].map(side => {
    const own = all.filter(stop => stop.side === side), rows = {};
    own.forEach(stop => (rows[stop.layer ? `${stop.layer} ${stop.part}` : all.indexOf(stop) % first < 2 ? "in" : "out"] ??= []).push(stop));
    return `<div class="${side}"><b>${side}</b>${Object.entries(rows).sort(([, a], [, b]) => all.indexOf(a[0]) - all.indexOf(b[0])).map(([name, row]) =>
      `${/^\d self/.test(name) ? `<em>layer ${name[0]}</em>` : ""}<span class="${row[0].layer ? "around" : ""}">${row.map(stop =>
        `<button type="button" data-stop="${all.indexOf(stop)}" data-kind="${stop.kind}">${label[stop.kind]}</button>`).join("")}</span>`).join("")}</div>`;
  }).join("");
  stops.onclick = ({ target }) => { if (target.dataset.stop) { halt(); at = Number(target.dataset.stop); show(); } };
  stops.onkeydown = event => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    halt(); go(by); show();
    stops.querySelector("[tabindex='0']").focus();
  };
  figure.onchange = ({ target }) => {
    const i = [...(target.closest("span")?.children ?? [])].indexOf(target.parentElement);
    halt();
    if (target.name === "source") [place, at] = [i, Math.min(at, memory)];
    if (target.name === "target") [step, at] = [i, Math.max(at, first)];
    if (target.type === "radio") show();
  };
  figure.onsubmit = () => {
    const asked = live.read(input.value, model.english.words);
    halt();
    if (asked.error) said.textContent = asked.error;
    else { read(asked.source); [at, place, step] = [0, 0, 0]; show(); }
    return false;
  };
  input.value = input.defaultValue;
  read(live.read(input.value, model.english.words).source);
  show();
});
