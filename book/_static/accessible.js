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
  each("pre, .cell_output > .output, .pst-scrollable-table-container, .gallery .side", box => sizes.observe(box));
});

// On paper nothing can be opened: answers and folded code are printed.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  opened.forEach(folded => { folded.open = true; });
});
addEventListener("afterprint", () => opened.forEach(folded => { folded.open = false; }));
