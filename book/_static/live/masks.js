// Chapter 6: a mask, cell by cell; what it does to weights, and which output depends on which word.
"use strict";

live.figure("masks", (find, figure) => {
  const { presets, judge } = live.data.masks, n = presets[0].words.length;
  const said = find(".said"), table = find("table");
  const marked = text => text.replace(/[&<]/g, letter => `&#${letter.charCodeAt(0)};`).replace(/`(.+?)`/g, "<code>$1</code>");
  let words, x, mask, at = [0, 0];

  /** As the package's: an output depends on a word if it changes when the word's vector is pushed. */
  const depends = () => {
    const outputs = rows => live.attend(rows, rows, rows, mask).output;
    const before = outputs(x);
    return words.map((_, place) => {
      const pushed = x.map((row, i) => i === place ? row.map((value, j) => value + Math.cos(j) * (1 + Math.abs(value))) : row);
      return outputs(pushed).map((row, i) => row.some((value, j) => Math.abs(value - before[i][j]) > 1e-9));
    });
  };

  const same = (a, b) => a.every((row, q) => row.every((may, k) => may === b[q][k]));

  const show = () => {
    const { weights } = live.attend(x, x, x, mask), changed = depends();
    const sums = weights.map(row => row.reduce((sum, weight) => sum + weight, 0));
    mask.forEach((row, q) => {
      const cells = table.rows[q + 1].cells;
      row.forEach((may, k) => {
        const button = cells[k + 1].firstChild;
        button.textContent = may ? weights[q][k].toFixed(2) : "0";
        button.setAttribute("aria-pressed", may);
        button.setAttribute("aria-label", `${words[q]} (${q + 1}) may look at ${words[k]} (${k + 1}): ${may ? "yes" : "no"}, weight ${button.textContent}`);
        button.style.setProperty("--w", Math.round(100 * weights[q][k]));
        button.tabIndex = at[0] === q && at[1] === k ? 0 : -1;
        cells[n + 2 + k].textContent = changed[k][q] ? "■" : "·";
        cells[n + 2 + k].classList.toggle("leak", k > q && changed[k][q]);
      });
      cells[n + 1].textContent = sums[q].toFixed(2);
      table.rows[q + 1].classList.toggle("dead", sums[q] === 0);
    });
    const dead = words.flatMap((word, q) => sums[q] === 0 ? [`${word} (${q + 1})`] : []);
    const leaks = mask.flatMap((row, q) => row.flatMap((_, k) => k > q && changed[k][q] ? [1] : [])).length;
    const count = (n, one, many) => n === 0 ? "none" : n === 1 ? `1 ${one}` : `${n} ${many}`;
    find(".dead-rows").textContent = dead.length ? dead.join(", ") : "none";
    find(".leaks").textContent = count(leaks, "output depends on a later word", "times an output depends on a later word");
    const known = judge.find(each => same(each.mask, mask));
    find(".judge").hidden = !known;
    if (known) {
      find(".judge b").innerHTML = marked(known.thinks);
      find(".judge span").innerHTML = marked(known.why);
      find(".judge a").textContent = known.id;
      find(".judge a").href = `mistakes/masking.html#${known.id}`;
    }
    const preset = presets.find(each => same(each.mask, mask) && each.words.join() === words.join());
    find(".preset").textContent = preset ? preset.name : "a mask of your own";
  };

  const set = preset => {
    ({ words, x } = preset);
    mask = preset.mask.map(row => [...row]);
    words.forEach((word, place) => {
      table.rows[0].cells[place + 1].textContent = table.rows[place + 1].cells[0].textContent = word;
    });
    show();
  };
  const toggle = (q, k) => {
    mask[q][k] = !mask[q][k];
    show();
    said.textContent = table.rows[q + 1].cells[k + 1].firstChild.getAttribute("aria-label") + ".";
  };

  const places = Array.from({ length: n }, (_, place) => place);
  table.tHead.rows[0].innerHTML = `<th scope="col">query</th>${"<th scope='col'></th>".repeat(n)}<th scope="col">sum</th>` +
    places.map(k => `<th scope="col"><span class="hidden">depends on word </span>${k + 1}</th>`).join("");
  table.tBodies[0].innerHTML = places.map(q => "<tr><th scope='row'></th>" +
    places.map(k => `<td><button type="button" data-at="${q} ${k}"></button></td>`).join("") + "<td></td>".repeat(n + 1) + "</tr>").join("");
  live.list(find(".presets"), presets, "<button type='button'></button> ").forEach((button, i) => {
    button.textContent = presets[i].name;
    button.onclick = () => { set(presets[i]); said.textContent = `${presets[i].name}. Dead rows: ${find(".dead-rows").textContent}.`; };
  });

  table.onclick = event => {
    const button = event.target.closest("button");
    if (!button) return;
    at = button.dataset.at.split(" ").map(Number);
    toggle(...at);
  };
  table.onkeydown = event => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !event.target.dataset.at) return;
    event.preventDefault();
    at = at.map((place, axis) => Math.min(n - 1, Math.max(0, place + step[axis])));
    show();
    table.rows[at[0] + 1].cells[at[1] + 1].firstChild.focus();
  };
  set(presets.find(each => each.name === figure.dataset.preset));
});
