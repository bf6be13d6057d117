// Chapter 4: words as points of a plane. Move one, and see whom it reads and where the layer puts it.
"use strict";

live.figure("plane", (find, figure) => {
  const start = live.data.plane, names = Object.keys(start), low = -1, high = 3;
  const plane = find(".plane"), svg = find("svg"), points = {}, places = {};
  const marks = [-1, 1, 2, 3].map(at => `M${at} -.05V.05M-.05 ${-at}H.05`).join("");
  let chosen = "model", moving = false;
  names.forEach(name => { points[name] = find(`[data-word="${name}"]`); });

  const print = (value, digits = 2) => value.toFixed(digits).replace(/^-(0\.0+)$/, "$1").replace("-", "−");
  const at = place => Array.from(place, value => print(value)).join(", ");
  const bounded = value => Math.min(high, Math.max(low, value));
  const here = () => names.filter(name => name === "model" || find(`input[value="${name}"]`).checked);
  const line = ([x, y], [to, up], width, kind) =>
    `<path class="${kind}" d="M${x.toFixed(3)} ${(-y).toFixed(3)}L${to.toFixed(3)} ${(-up).toFixed(3)}" stroke-width="${width.toFixed(1)}"/>`;
  const ring = ([x, y], radius, width, kind) =>
    `<circle class="${kind}" cx="${x.toFixed(3)}" cy="${(-y).toFixed(3)}" r="${radius}" stroke-width="${width.toFixed(1)}"/>`;

  const show = () => {
    const words = here(), x = words.map(name => places[name]), { weights, output } = live.attend(x, x, x);
    if (!words.includes(chosen)) chosen = "model";
    const who = words.indexOf(chosen);
    svg.innerHTML = `<path class="axis" d="M${low} 0H${high}M0 ${-low}V${-high}${marks}"/>` +
      `<text x="1" y=".28">1</text><text x="-.16" y="-.93">1</text>` +
      x.map((place, i) => i === who ? "" : line(x[who], place, 1 + 10 * weights[who][i], "reads")).join("") +
      ring(x[who], 0.22, 1 + 10 * weights[who][who], "reads") +
      x.map((place, i) => line(place, output[i], 2, i === who ? "moves now" : "moves")).join("") +
      x.map((_, i) => ring(output[i], 0.08, 2, i === who ? "moves now" : "moves")).join("");
    names.forEach(name => {
      const [right, up] = places[name], point = points[name];
      point.hidden = !words.includes(name);
      point.style.left = `${(100 * (right - low) / (high - low)).toFixed(1)}%`;
      point.style.top = `${(100 * (high - up) / (high - low)).toFixed(1)}%`;
      point.setAttribute("aria-pressed", name === chosen);
      point.setAttribute("aria-label", `${name}, computing ${print(right)}, clothes ${print(up)}`);
    });
    find("table").innerHTML = `<thead><tr><th scope="col">word</th><th scope="col">stands at</th>` +
      words.map(name => `<th scope="col">reads ${name}</th>`).join("") + `<th scope="col">moves to</th></tr></thead><tbody>` +
      words.map((name, i) => `<tr${i === who ? ` class="lit"` : ""}><th scope="row">${name}</th><td>${at(x[i])}</td>` +
        Array.from(weights[i], weight => `<td>${print(weight)}</td>`).join("") + `<td>${at(output[i])}</td></tr>`).join("") + "</tbody>";
    const score = to => x[who].reduce((sum, value, k) => sum + value * to[k], 0) / Math.sqrt(x[who].length);
    const scores = words.map((name, i) => `${name} ${print(score(x[i]))}`);
    find(".said").textContent = `Scores of ${chosen}, divided by √2: ${scores.join(", ")}. It moves to (${at(output[who])}).`;
  };

  const move = (name, place) => {
    places[name] = place.map(value => bounded(Math.round(100 * value) / 100));
    chosen = name;
    show();
  };
  const under = event => {
    const box = svg.getBoundingClientRect(), unit = (high - low) / box.width;
    return [low + unit * (event.clientX - box.left), high - unit * (event.clientY - box.top)];
  };
  plane.onpointerdown = event => {
    const point = event.target.closest("[data-word]");
    if (!point) return;
    point.setPointerCapture(event.pointerId);
    moving = true;
    chosen = point.dataset.word;
    show();
  };
  plane.onpointermove = event => { if (moving) move(chosen, under(event)); };
  plane.onpointerup = plane.onpointercancel = () => { moving = false; };
  plane.onclick = event => { if (event.target.dataset.word) { chosen = event.target.dataset.word; show(); } };
  plane.onkeydown = event => {
    const step = { ArrowUp: [0, 0.1], ArrowDown: [0, -0.1], ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0] }[event.key];
    const name = event.target.dataset.word;
    if (!step || !name) return;
    event.preventDefault();
    move(name, places[name].map((value, axis) => value + step[axis]));
  };
  const begin = () => { names.forEach(name => { places[name] = start[name]; }); show(); };
  find(`[value="apply"]`).onclick = () => {
    const words = here(), x = words.map(name => places[name]);
    live.attend(x, x, x).output.forEach((place, i) => { places[words[i]] = Array.from(place); });
    show();
  };
  find(`[value="begin"]`).onclick = begin;
  figure.onchange = show;
  begin();
});
