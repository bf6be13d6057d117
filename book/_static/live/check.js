// "Check yourself": predict, then reveal. What a reader wrote, and whether it was right, stays in this
// browser; nothing is sent. The course map shows it as dots, the list of chapters as "2 of 5", and the
// first page says where one stopped.
"use strict";

addEventListener("DOMContentLoaded", () => {
  let kept;
  try { kept = localStorage; } catch { return; }  // a browser may forbid it: the page is as without scripts
  const page = location.pathname.split("/").pop().replace(/\.html$/, ""), ours = `attncourse/${page}/`;

  document.querySelectorAll("details.sd-dropdown").forEach((answer, i) => {
    if (answer.querySelector("summary").textContent.trim() !== "Answer") return;
    const question = (answer.previousElementSibling?.textContent || "").trim().slice(0, 60), key = ours + question;
    answer.insertAdjacentHTML("beforebegin",
      `<label class="predict">Your answer first <textarea rows="1"></textarea></label>`);
    answer.insertAdjacentHTML("beforeend", `<fieldset class="had"><legend>Did you have it?</legend>` +
      ["yes", "not yet"].map(said => `<label><input type="radio" name="had-${i}" value="${said}"> ${said}</label>`).join(" ") + "</fieldset>");
    const [text, had] = [answer.previousElementSibling.querySelector("textarea"), answer.querySelector(".had")];
    text.value = kept.getItem(`${key}/text`) || "";
    text.oninput = () => {
      kept.setItem(`${key}/text`, text.value);
      text.rows = 1 + (text.value.match(/\n/g) || []).length;
    };
    had.onchange = event => kept.setItem(`${key}/had`, event.target.value);
    had.querySelectorAll("input").forEach(each => { each.checked = each.value === kept.getItem(`${key}/had`); });
  });

  const asked = document.querySelectorAll(".predict").length;
  if (asked) {
    kept.setItem(`${ours}questions`, String(asked));
    const title = (document.querySelector("article h1")?.textContent ?? page).replace(/#$/, "").trim();
    kept.setItem("attncourse-last", JSON.stringify({ page, title }));
    const near = new IntersectionObserver(seen => seen.forEach(({ isIntersecting, target }) => {
      if (isIntersecting && scrollY) kept.setItem("attncourse-last", JSON.stringify({ page, title, section: target.id }));
    }), { rootMargin: "0px 0px -60% 0px" });
    document.querySelectorAll("article section section").forEach(section => near.observe(section));
  }

  document.querySelectorAll(".bd-sidebar-primary a[href]").forEach(link => {
    const name = link.getAttribute("href").split("/").pop().replace(/(\.html)?#?.*$/, "") || page;
    const total = kept.getItem(`attncourse/${name}/questions`);
    const done = Object.keys(kept).filter(key => key.startsWith(`attncourse/${name}/`) && key.endsWith("/had")).length;
    if (total && done) link.insertAdjacentHTML("beforeend", ` <span class="came">${Math.min(done, total)} of ${total}</span>`);
  });

  // A report of the judge leads to an entry of the gallery; chapter 14 says which of its mistakes were met.
  const meet = () => {
    if (location.pathname.includes("/mistakes/") && location.hash.length > 1)
      kept.setItem(`attncourse-met/${decodeURIComponent(location.hash.slice(1))}`, "yes");
  };
  meet();
  addEventListener("hashchange", meet);
  document.querySelectorAll("[data-met]").forEach(own => {
    const met = own.dataset.met.split(" ").filter(name => kept.getItem(`attncourse-met/${name}`));
    if (met.length) own.textContent = `In this browser you have opened the entry of ${met.join(", ")}.`;
  });

  const doors = document.querySelector(".doors"), last = JSON.parse(kept.getItem("attncourse-last"));
  if (doors && last) {
    doors.insertAdjacentHTML("afterend", `<p class="continue">You stopped in <a></a>.</p>`);
    const link = doors.nextElementSibling.querySelector("a");
    link.href = `${last.page}.html${last.section ? `#${last.section}` : ""}`;
    link.textContent = last.title;
  }

  document.querySelectorAll(".dots").forEach(dots => {
    const total = Number(dots.dataset.questions), prefix = `attncourse/${dots.dataset.page}/`;
    const said = Object.keys(kept).filter(key => key.startsWith(prefix) && key.endsWith("/had")).map(key => kept.getItem(key));
    const right = Math.min(total, said.filter(each => each === "yes").length), open = Math.min(total - right, said.length - right);
    if (!right && !open) return;
    dots.textContent = "●".repeat(right) + "○".repeat(open) + "·".repeat(total - right - open);
    dots.setAttribute("role", "img");
    dots.setAttribute("aria-label", `${right} of ${total} questions right, ${open} not yet`);
  });
});
