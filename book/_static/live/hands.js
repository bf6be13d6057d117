// Chapter 4: each pair of features is a hand that turns at its own speed; two positions, side by side.
"use strict";

live.figure("hands", (find, figure) => {
  const speeds = live.data.hands, [first, apart] = ["position", "distance"].map(name => find(`input[name=${name}]`));
  const print = (value, digits = 2) => value.toFixed(digits).replace(/^-(0\.0+)$/, "$1").replace("-", "−");
  const point = (angle, length) => `${(length * Math.sin(angle)).toFixed(3)} ${(-length * Math.cos(angle)).toFixed(3)}`;

  const cards = live.list(find(".hands"), speeds, `<li><span></span><svg viewBox="-1.1 -1.1 2.2 2.2" aria-hidden="true"></svg><dl>` +
    `<dt class="here"></dt><dd></dd><dt class="there"></dt><dd></dd><dt class="between">apart</dt><dd></dd></dl><b></b></li>`);

  const show = () => {
    const p = Number(first.value), o = Number(apart.value), cosines = speeds.map(speed => Math.cos(o * speed));
    first.nextElementSibling.textContent = p;
    apart.nextElementSibling.textContent = o;
    speeds.forEach((speed, i) => {
      const [one, two] = [p * speed, (p + o) * speed], turn = o * speed % (2 * Math.PI), card = cards[i];
      const slow = Math.round(1 / speed);
      card.querySelector("span").textContent = `speed ${slow > 1 ? `1/${slow}` : 1}`;
      card.querySelector("svg").innerHTML = `<circle r="1"/>` +
        (turn ? `<path class="between" d="M0 0L${point(one, 0.55)}A.55 .55 0 ${Number(turn > Math.PI)} 1 ${point(two, 0.55)}Z"/>` : "") +
        `<path class="here" d="M0 0L${point(one, 0.95)}"/><path class="there" d="M0 0L${point(two, 0.95)}"/>`;
      const [here, there, between] = card.querySelectorAll("dd");
      here.textContent = `${print(Math.sin(one))}, ${print(Math.cos(one))}`;
      there.textContent = `${print(Math.sin(two))}, ${print(Math.cos(two))}`;
      between.textContent = `${Number((o * speed).toPrecision(3))} rad`;
      card.querySelector("b").textContent = `cos ${print(cosines[i])}`;
      card.querySelectorAll("dt")[0].textContent = `at ${p}`;
      card.querySelectorAll("dt")[1].textContent = `at ${p + o}`;
    });
    const sum = print(cosines.reduce((sum, value) => sum + value, 0));
    find(".said").textContent = `Positions ${p} and ${p + o}: the cosines sum to ${sum}, the dot product of their vectors, as of any two positions ${o} apart.`;
  };

  const most = Number(first.max);
  figure.onclick = event => {
    if (event.target.type !== "button") return;
    first.value = Math.min(most, Math.max(0, Number(first.value) + Number(event.target.value)));
    show();
  };
  figure.oninput = show;
  first.value = first.defaultValue;
  apart.value = apart.defaultValue;
  show();
});
