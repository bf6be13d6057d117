// What screen readers and paper get from the theme and its extensions, put right.
addEventListener("DOMContentLoaded", () => {
  const each = (places, change) => document.querySelectorAll(places).forEach(change);

  // A list of references is a list, and ARIA has retired the role of its entries.
  each("[role=doc-biblioentry]", entry => entry.setAttribute("role", "listitem"));

  // The words one reads ("Show code cell source") must be part of the name (WCAG 2.5.3).
  each("details.hide > summary, .search-button-field", named => named.removeAttribute("aria-label"));

  // What opens a list of pages is named after its page.
  each(".has-children > details > summary", opener => {
    const page = opener.closest(".has-children").querySelector("a").textContent.trim();
    opener.setAttribute("aria-label", `Pages of ${page}`);
  });

  // What is wider than its place is scrolled by keyboard, too. A section that waits for its reader
  // has no sizes yet, and is not made to have them.
  const sizes = new ResizeObserver(seen => {
    const wide = seen.map(({ target }) => target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight);
    seen.forEach(({ target }, i) => { target.tabIndex = wide[i] ? 0 : -1; });
  });
  each("pre, div.math, .cell_output > .output, .pst-scrollable-table-container, .gallery .side", box => sizes.observe(box));
});

// A term's line of the glossary, beside the term: under the mouse, with the focus, at the first touch.
addEventListener("DOMContentLoaded", () => {
  const card = document.createElement("div");
  card.className = "term-card";
  card.id = "term-card";
  card.setAttribute("role", "tooltip");
  let shown, touched = false;
  const hide = () => {
    shown?.removeAttribute("aria-describedby");
    shown = undefined;
    card.remove();
  };
  const show = term => {
    if (shown === term) return;
    hide();
    shown = term;
    card.textContent = term.dataset.said;
    term.setAttribute("aria-describedby", card.id);
    document.body.append(card);
    const at = term.getClientRects()[0], left = Math.min(at.left, document.documentElement.clientWidth - card.offsetWidth - 8);
    card.style.left = `${scrollX + Math.max(8, left)}px`;
    card.style.top = `${scrollY + at.bottom + 4}px`;
  };
  document.querySelectorAll("a.term").forEach(term => {
    term.dataset.said = term.title;
    term.removeAttribute("title");
    term.addEventListener("pointerenter", event => { if (event.pointerType === "mouse") show(term); });
    term.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") hide(); });
    term.addEventListener("pointerdown", event => { touched = event.pointerType === "touch" && shown !== term; });
    term.addEventListener("focus", () => show(term));
    term.addEventListener("blur", hide);
    term.addEventListener("click", event => {
      if (!touched) return;  // the second touch follows the link
      touched = false;
      event.preventDefault();
      show(term);
    });
  });
  addEventListener("keydown", event => { if (event.key === "Escape") hide(); });
});

// On paper nothing can be opened: what is folded is printed, and answers stand at the end.
// A short listing stays on one page.
let backs = [];
addEventListener("beforeprint", () => {
  if (backs.length) return;
  const each = (places, change) => document.querySelectorAll(`article ${places}`).forEach(change);
  each("pre", listing => listing.classList.toggle("whole", listing.textContent.trim().split("\n").length < 15));
  each("details:not([open])", folded => {
    folded.open = true;
    backs.push(() => { folded.open = false; });
  });
  const end = document.createElement("section");
  end.className = "answers";
  each(".sd-summary-text", said => {
    if (said.textContent !== "Answer") return;
    const answer = said.closest("details"), mark = document.createElement("p");
    said.textContent = `Answer ${end.childElementCount + 1}`;
    mark.textContent = `→ ${said.textContent}, at the end`;
    answer.replaceWith(mark);
    end.append(answer);
    backs.push(() => { said.textContent = "Answer"; mark.replaceWith(answer); });
  });
  if (end.childElementCount) {
    end.insertAdjacentHTML("afterbegin", "<h2>Answers</h2>");
    document.querySelector("article section").append(end);
    backs.push(() => end.remove());
  }
});
addEventListener("afterprint", () => { backs.forEach(back => back()); backs = []; });
