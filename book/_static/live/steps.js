// Chapter 3: choose a number of any table, and what it was made from lights up.
"use strict";

live.figure("steps", (find, figure) => {
  const { Q, K, V, queries, keys, votes } = live.data.steps, d = Q[0].length;
  const features = Q[0].map((_, i) => String(i + 1));
  const shapes = {  // name -> title, rows, columns, decimals
    Q: ["Step 1: queries", queries, features, 0], K: ["Step 1: keys", keys, features, 0], V: ["Step 1: values", keys, votes, 0],
    scores: ["Step 2: scores", queries, keys, 0], scaled: ["Step 3: scaled", queries, keys, 1],
    weights: ["Step 4: weights", queries, keys, 3], output: ["Step 5: output", queries, votes, 2],
  };
  const on = name => find(`input[name=${name}]`).checked;
  const print = (value, digits) => value.toFixed(digits).replace("-", "−");
  let values, at = ["weights", 0, 1];

  const compute = () => {
    const mask = queries.map((_, q) => keys.map((_, k) => !(on("mask") && q === 0 && k === keys.length - 1)));
    const divisor = on("root") ? Math.sqrt(d) : 1;
    const { scores } = live.attend(Q, K, V);
    const raw = scores.map(row => Array.from(row, score => score * Math.sqrt(d)));
    const scaled = raw.map(row => row.map(score => score / divisor));
    const column = k => live.softmax(scaled.map(row => row[k]), mask.map(row => row[k]));
    const weights = on("rows") ? scaled.map((row, q) => live.softmax(row, mask[q])) :
      queries.map((_, q) => keys.map((_, k) => column(k)[q]));
    const output = weights.map(row => votes.map((_, v) => V.reduce((sum, value, k) => sum + row[k] * value[v], 0)));
    values = { Q, K, V, scores: raw, scaled, weights, output, mask };
  };

  /** What a number was made from: the cells, and the arithmetic in words. */
  const origin = (table, i, j) => {
    const number = (name, row, column) => print(values[name][row][column], shapes[name][3]);
    const own = number(table, i, j), row = (name, row, length) => Array.from({ length }, (_, k) => [name, row, k]);
    if (table in live.data.steps) return [[], `${own}: chosen by hand; in a network, learned matrices make it.`];
    if (table === "scores") {
      const terms = features.map((_, k) => `${number("Q", i, k)}·${number("K", j, k)}`);
      return [[...row("Q", i, d), ...row("K", j, d)], `${queries[i]} meets ${keys[j]}: ${terms.join(" + ")} = ${own}`];
    }
    if (table === "scaled") return [[["scores", i, j]], on("root") ? `${number("scores", i, j)} / √${d} = ${own}` : `${own}: left as it is`];
    if (table === "weights") {
      if (!values.mask[i][j]) return [[], "0: hidden by the mask"];
      const rivals = (on("rows") ? keys.map((_, k) => [i, k]) : queries.map((_, q) => [q, j])).filter(([q, k]) => values.mask[q][k]);
      const power = ([q, k]) => `exp(${number("scaled", q, k)})`;
      return [rivals.map(place => ["scaled", ...place]), `${power([i, j])} / (${rivals.map(power).join(" + ")}) = ${own}`];
    }
    const terms = keys.map((_, k) => `${number("weights", i, k)}·${number("V", k, j)}`);
    return [[...row("weights", i, keys.length), ...keys.map((_, k) => ["V", k, j])], `${terms.join(" + ")} = ${own}`];
  };

  const button = (name, row, column) => find(`[data-cell="${name} ${row} ${column}"]`);
  const show = () => {
    compute();
    const [made, formula] = origin(...at);
    const lit = new Set(made.map(place => place.join(" ")));
    figure.querySelectorAll("[data-cell]").forEach(cell => {
      const [name, row, column] = cell.dataset.cell.split(" ");
      cell.textContent = print(values[name][row][column], shapes[name][3]);
      cell.classList.toggle("lit", lit.has(cell.dataset.cell));
      cell.setAttribute("aria-pressed", cell.dataset.cell === at.join(" "));
      cell.tabIndex = (name === at[0] ? cell.dataset.cell === at.join(" ") : row + column === "00") ? 0 : -1;
    });
    const sums = values.weights.map(row => row.reduce((sum, weight) => sum + weight, 0));
    const sum = at[0] === "weights" ? `. The rows sum to ${sums.map(each => print(each, 2)).join(" and ")}.` : ".";
    find(".formula").textContent = formula.replace(/\.$/, "") + sum;
  };

  find(".tables").innerHTML = Object.entries(shapes).map(([name, [title, rows, columns]]) =>
    `<table><caption>${title}</caption><thead><tr><td></td>${columns.map(column => `<th scope="col">${column}</th>`).join("")}</tr></thead><tbody>` +
    rows.map((row, i) => `<tr><th scope="row">${row}</th>${columns.map((column, j) =>
      `<td><button type="button" data-cell="${name} ${i} ${j}"></button></td>`).join("")}</tr>`).join("") + "</tbody></table>").join("");

  const choose = cell => {
    const [name, row, column] = cell.dataset.cell.split(" ");
    at = [name, Number(row), Number(column)];
    show();
  };
  figure.onclick = event => { if (event.target.dataset.cell) choose(event.target); };
  figure.onkeydown = event => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !event.target.dataset.cell) return;
    event.preventDefault();
    const [name, row, column] = event.target.dataset.cell.split(" ");
    const next = button(name, Number(row) + step[0], Number(column) + step[1]);
    if (next) { choose(next); next.focus(); }
  };
  figure.onchange = show;
  show();
});
