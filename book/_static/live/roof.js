// Lab 2: the bytes of attention, and how fast they let it be on a GPU, by its data sheet.
"use strict";

live.figure("roof", (find, figure) => {
  const { sheets, heads } = live.data.roof, BYTES = { float16: 2, bfloat16: 2, float32: 4 };
  const chosen = name => find(`select[name=${name}]`).value;
  const MARKS = [  // at the origin, as in the table's head: ✕ ○ ■
    `<path d="M-1.3 -1.3L1.3 1.3M1.3 -1.3L-1.3 1.3"/>`, `<circle r="1.4"/>`, `<rect x="-1.2" y="-1.2" width="2.4" height="2.4"/>`,
  ];

  /** Three digits, a prefix and a unit: 4.29 GB. */
  const print = (value, unit) => {
    const power = Math.floor(Math.log10(Number(value.toPrecision(3))) / 3);
    return `${(value / 1000 ** power).toPrecision(3)} ${["n", "µ", "m", "", "k", "M", "G", "T", "P"][power + 3]}${unit}`.trimEnd();
  };

  const plain = value => Number(value.toPrecision(3)).toLocaleString("en");

  // The formulas of `attncourse.lab.roofline`, for one sentence: operations, bytes moved, bytes held at once.
  const ways = (n, d, size) => [
    [4 * heads * n * n * d, size * heads * (6 * n * n + 4 * n * d), size * heads * (2 * n * n + 4 * n * d)],
    [4 * heads * n * n * d, size * heads * 4 * n * d, size * heads * 4 * n * d],
    [4 * heads * n * d, size * heads * 2 * n * d, size * heads * 2 * n * d],
  ].map(([flops, moved, held]) => ({ flops, moved, held, intensity: flops / moved }));

  // Logarithmic axes: 100 units for 2^-2 … 2^18 operations a byte, 60 for 10^10 … 10^16 a second.
  const across = value => (5 * (Math.log2(value) + 2)).toFixed(2);
  const up = value => (60 - 10 * (Math.log10(value) - 10)).toFixed(2);

  const marks = [...Array(10).keys()].map(i => `M${10 * i} 59V60`).join("") + [1, 2, 3, 4, 5].map(i => `M0 ${10 * i}H1`).join("");

  const show = () => {
    const gpu = chosen("gpu"), sheet = sheets[gpu], known = Object.keys(sheet.flops_per_second);
    figure.querySelectorAll("select[name=dtype] option").forEach(each => { each.disabled = !known.includes(each.value); });
    if (!known.includes(chosen("dtype"))) find("select[name=dtype]").value = "float16";
    const n = Number(chosen("n")), d = Number(chosen("d")), dtype = chosen("dtype");
    const peak = sheet.flops_per_second[dtype], bandwidth = sheet.bytes_per_second, ridge = peak / bandwidth;
    const all = ways(n, d, BYTES[dtype]), speed = way => Math.min(peak, way.intensity * bandwidth);
    const rows = {
      "operations": way => print(way.flops, ""), "bytes moved": way => print(way.moved, "B"),
      "operations a byte": way => plain(way.intensity), "at most, a second": way => print(speed(way), ""),
      "so it takes, at least": way => print(way.flops / speed(way), "s"), "bytes held at once": way => print(way.held, "B"),
    };
    find("tbody").innerHTML = Object.entries(rows).map(([name, cell]) =>
      `<tr><th scope="row">${name}</th>${all.map(way => `<td>${cell(way)}</td>`).join("")}</tr>`).join("");
    find("svg").innerHTML = `<path class="axis" d="M0 0V60H100${marks}"/><path class="ridge" d="M${across(ridge)} ${up(peak)}V60"/>` +
      `<path class="top" d="M0 ${up(bandwidth / 4)}L${across(ridge)} ${up(peak)}H100"/>` +
      all.map((way, i) => `<g class="way${i}" transform="translate(${across(way.intensity)} ${up(speed(way))})">${MARKS[i]}</g>`).join("");
    const [bend, flat] = figure.querySelectorAll(".roof small b");
    [bend.textContent, flat.textContent] = [plain(ridge), `${print(peak, "")}FLOP/s`];
    bend.parentElement.style.left = `${across(ridge)}%`;
    flat.parentElement.style.top = `calc(1.4em + (100% - 2.8em) * ${(up(peak) / 60).toFixed(3)} - 1.7em)`;
    const side = way => way.intensity < ridge ? "waits for memory" : "computes at full speed";
    find(".said").textContent = `${gpu}, ${dtype}, n = ${n.toLocaleString("en")}, d = ${d}, ${heads} heads. The roof bends at ` +
      `${plain(ridge)} operations a byte: naive attention ${side(all[0])}, fused attention ${side(all[1])}. Naive attention ` +
      `${all[0].held <= sheet.memory_bytes ? "fits" : "does not fit"} into ${print(sheet.memory_bytes, "B")}.`;
  };
  figure.onchange = show;
  show();
});
