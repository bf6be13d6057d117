// Finds sections of the book (SECTIONS, made by section_search.py). Each word of the query must begin
// a word of the section or of its titles; titles count most.
addEventListener("DOMContentLoaded", () => {
  const query = (new URLSearchParams(location.search).get("q") ?? "").trim().toLowerCase();
  document.querySelectorAll(".bd-search input").forEach(field => { field.value = query; });
  const place = document.getElementById("search-results");
  place.setAttribute("aria-live", "polite");
  if (!query) return;

  const LETTER = "[\\p{L}\\p{N}]";
  const pattern = word => {
    const stem = word.length > 4 ? word.replace(/(?:ies|ing|ed|es|s|y|e)$/, "") : word;
    const start = RegExp(`^${LETTER}`, "u").test(word) ? `(?<!${LETTER})` : "";
    const end = word.length < 3 ? `(?!${LETTER})` : "";
    return RegExp(start + stem.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&") + end, "giu");
  };
  const patterns = query.split(/\s+/).map(pattern);
  const count = (text, each) => text.match(each)?.length ?? 0;

  const score = ([, page, title, text]) => {
    let sum = [title, text].filter(part => part.toLowerCase().includes(query)).length * 10;
    for (const each of patterns) {
      const here = 20 * count(title, each) + 8 * count(page, each) + Math.min(count(text, each), 5);
      if (!here) return 0;
      sum += here;
    }
    return sum;
  };

  // The 200 letters in which most words of the query stand, with these marked.
  const excerpt = text => {
    const starts = patterns.flatMap(each => [...text.matchAll(each)].slice(0, 20).map(at => at.index));
    const hits = start => patterns.filter(each => count(text.slice(start, start + 160), each)).length;
    const best = starts.sort((a, b) => hits(b) - hits(a) || a - b)[0] ?? 0;
    const from = best < 60 ? 0 : text.indexOf(" ", best - 50) + 1;
    const shown = text.slice(from, from + 200);
    const paragraph = document.createElement("p");
    let last = 0;
    const marks = patterns.flatMap(each => [...shown.matchAll(each)]).sort((a, b) => a.index - b.index);
    for (const { 0: word, index } of marks) {
      if (index < last) continue;
      const mark = document.createElement("mark");
      mark.textContent = word;
      paragraph.append(shown.slice(last, index), mark);
      last = index + word.length;
    }
    paragraph.append(shown.slice(last));
    if (from) paragraph.prepend("… ");
    if (from + 200 < text.length) paragraph.append(" …");
    return paragraph;
  };

  const found = SECTIONS.map(each => [score(each), each]).filter(([points]) => points)
    .sort((a, b) => b[0] - a[0]).slice(0, 40);
  const said = document.createElement("p");
  said.textContent = found.length
    ? `${found.length === 40 ? "The first 40" : found.length} sections with “${query}”`
    : `No section has all of “${query}”. Fewer words find more.`;
  const list = document.createElement("ol");
  list.className = "found";
  for (const [, [address, page, title, text]] of found) {
    const link = document.createElement("a");
    link.href = address;
    link.textContent = title || page;
    // The page marks the words, too (sphinx_highlight.js).
    link.addEventListener("click", () => localStorage.setItem("sphinx_highlight_terms", query));
    const item = document.createElement("li");
    item.append(link, title ? ` ${page}` : "", excerpt(text));
    list.append(item);
  }
  place.replaceChildren(said, list);
});
