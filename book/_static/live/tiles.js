// Lab 6: attention tile by tile. A step brings one tile of scores; three numbers a query are all that stays.
"use strict";

live.figure("tiles", (find, figure) => {
  const { scores, values } = live.data.tiles, n = values.length, EMPTY = { m: -Infinity, l: 0, a: 0 };
  const size = () => Number(find("select[name=tile]").value), causal = () => find("input[name=causal]").checked;
  const print = (value, digits = 3) => Number.isFinite(value) ? value.toFixed(digits).replace("-", "−") : "−∞";
  const may = (q, k) => !causal() || k <= q;
  let at = 2, stop = null;

  /** All tiles in the order of the loops; with a causal mask those that nobody may see are left out. */
  const order = () => {
    const starts = Array.from({ length: Math.ceil(n / size()) }, (_, i) => i * size());
    return starts.flatMap(row => starts.filter(column => may(Math.min(row + size(), n) - 1, column)).map(column => [row, column]));
  };

  /** What some keys gave a query: the largest score, the sum of exponentials, the values so weighted. */
  const partOf = (q, keys) => {
    const seen = keys.filter(k => may(q, k)), m = Math.max(...seen.map(k => scores[q][k]));
    const weights = seen.map(k => Math.exp(scores[q][k] - m));
    return { m, l: weights.reduce((sum, w) => sum + w, 0), a: seen.reduce((sum, k, i) => sum + weights[i] * values[k], 0) };
  };

  /** Two parts over different keys, joined exactly. */
  const merge = (one, two) => {
    const m = Math.max(one.m, two.m), shrink = part => part.m === -Infinity ? 0 : Math.exp(part.m - m);
    return { m, l: shrink(one) * one.l + shrink(two) * two.l, a: shrink(one) * one.a + shrink(two) * two.a };
  };

  const show = () => {
    const tiles = order(), state = values.map(() => EMPTY), t = size();
    at = Math.min(at, tiles.length);
    const inside = (start, i) => start <= i && i < Math.min(start + t, n);
    const now = at ? tiles[at - 1] : [n, n];
    let told = "";
    tiles.slice(0, at).forEach(([row, column], step) => {
      for (let q = row; q < Math.min(row + t, n); q++) {
        const keys = values.map((_, k) => k).filter(k => inside(column, k)), part = partOf(q, keys), before = state[q];
        state[q] = merge(before, part);
        if (step === at - 1 && q === row) {
          told = part.m === -Infinity ? `Query ${q + 1} may see nothing here.` : before.l ?
            `Query ${q + 1}: the largest score was ${before.m}, this tile’s is ${part.m}. The ${part.m > before.m ? "old" : "new"} sums shrink by ` +
            `e<sup>${print(-Math.abs(part.m - before.m), 0)}</sup> = ${print(Math.exp(-Math.abs(part.m - before.m)))}.` :
            `Query ${q + 1}: this is its first tile, so its sums are kept as they are.`;
        }
      }
    });
    const done = q => at === tiles.length || tiles[at][0] > q;
    find(".scores thead").innerHTML = `<tr><th scope="row">value</th>${values.map(value => `<th scope="col">${value}</th>`).join("")}</tr>`;
    find(".scores tbody").innerHTML = scores.map((line, q) => `<tr><th scope="row">query ${q + 1}</th>` + line.map((score, k) => {
      const here = inside(now[0], q) && inside(now[1], k), gone = tiles.slice(0, at).some(([r, c]) => inside(r, q) && inside(c, k));
      return `<td class="${here ? "lit" : gone ? "gone" : ""}">${!here ? gone ? "×" : "·" : may(q, k) ? score : "−∞"}</td>`;
    }).join("") + "</tr>").join("");
    find(".state tbody").innerHTML = state.map(({ m, l, a }, q) => `<tr${inside(now[0], q) ? ` class="lit"` : ""}><th scope="row">query ${q + 1}</th>` +
      `<td>${print(m, 0)}</td><td>${print(l)}</td><td>${print(a)}</td><td>${done(q) ? print(a / l) : ""}</td></tr>`).join("");
    const over = t < n ? " Every output is exact, and no row of scores was ever whole." : " One tile for all: this is naive attention.";
    find(".said").innerHTML = `Tile ${at} of ${tiles.length}. ${told}${at === tiles.length ? over : ""}`.trim();
    find(`[value="play"]`).textContent = stop ? "stop" : "play";
  };

  const halt = () => { clearInterval(stop); stop = null; };
  const press = {
    next: () => { halt(); at = at === order().length ? 0 : at + 1; },
    begin: () => { halt(); at = 0; },
    play: () => {
      if (stop) return halt();
      const last = order().length;
      if (at === last) at = 0;
      if (matchMedia("(prefers-reduced-motion: reduce)").matches) { at = last; return; }
      stop = setInterval(() => { if (++at >= order().length) halt(); show(); }, 1200);
    },
  };
  figure.onclick = event => { if (press[event.target.value]) { press[event.target.value](); show(); } };
  figure.onchange = () => { halt(); at = Math.min(at, order().length); show(); };
  show();
});
