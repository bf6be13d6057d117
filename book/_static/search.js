// Finds sections of the book (SECTIONS, made by section_search.py) while one types, on the search page
// and in the box above any page. Each word of the query must begin a word of the section or of its
// titles. A section that defines what is asked for comes first.
"use strict";

const bookSearch = (() => {
  const LETTER = "[\\p{L}\\p{N}]";
  const SMALL = new Set("a an and are at by can do does how i in is it of on or the this to what when where which why with".split(" "));

  /** As long as the text: "multi-head" and "multi head" are the same. @param {string} text */
  const plain = text => text.toLowerCase().replace(/[-_()[\]/,.:;'’"“”?]/g, " ");
  /** @param {string} text */
  const asked = text => {
    const all = plain(text.replace(/sqrt\s*\(?/gi, "√")).split(/\s+/).filter(Boolean);
    const isCode = /^[a-z]\d?(?:-\w+)+$/i.test(text.trim());  // of a report: A-BIAS
    const big = all.filter(word => isCode || !SMALL.has(word));
    return big.length ? big : all;
  };
  const stem = word => word.length > 4 ? word.replace(/(?:ies|ing|ed|es|s|y|e)$/, "") : word;
  const pattern = (word, place, all) => {
    const start = RegExp(`^${LETTER}`, "u").test(word) && !/\p{Script=Han}/u.test(word) ? `(?<!${LETTER})` : "";
    const isWhole = word.length < 3 && !(place && place === all.length - 1);  // the last may go on
    const end = isWhole ? `(?!${LETTER})` : "";
    return RegExp(start + stem(word).replace(/[.*+?^${}()|[\]\\]/g, "\\$&") + end, "giu");
  };
  const count = (text, each) => text.match(each)?.length ?? 0;

  /** How well a name is meant by the words: 1 if neither has others. */
  const meant = (patterns, name) => {
    const hit = patterns.filter(each => name.match(each)).length;
    return hit ** 2 / patterns.length / Math.max(hit, name.split(" ").length);
  };

  /** All that is compared, made plain once. */
  let known;
  const prepare = () => known ??= SECTIONS.map(row => {
    const [, page, title, text, share, names, bold, code] = row, list = each => each.map(name => plain(name).trim());
    return { row, share, page: plain(page), title: plain(title), text: plain(text), code: plain(code), names: list(names), bold: list(bold) };
  });

  const score = ({ row, share, page, title, text, code, names, bold }, patterns, phrase, query) => {
    const own = title || page;
    let sum = own.includes(phrase) ? 15 : text.includes(phrase) ? 8 : 0, hits = 0;
    for (const word of patterns) {
      const [inTitle, inPage, inText, inCode] = [title, page, text, code].map(part => count(part, word));
      if (!inTitle && !inPage && !inText && !inCode && !names.some(name => name.match(word))) return 0;
      sum += 20 * Math.min(inTitle, 1) + 8 * Math.min(inPage, 1) + Math.min(inText, 5) + Math.min(inCode, 5) / 5;
      hits += Math.min(title ? inTitle : inPage, 1);
    }
    sum += 15 * hits / asked(own).length;
    if (/\w_\w/.test(query) && row[3].includes(query)) sum += 20;  // a name in code, as it is written
    const fit = list => Math.min(1, list.reduce((all, name) => all + meant(patterns, name) ** 2, 0));
    if (names.includes(phrase)) sum += 80;
    return share * (sum + 80 * fit(names) + 30 * fit(bold));
  };

  /** The sections for a query, best first. @param {string} query */
  const find = query => {
    const words = asked(query), patterns = words.map(pattern);
    if (!words.length) return [];
    return prepare().map(each => [score(each, patterns, words.join(" "), query.trim()), each.row]).filter(([points]) => points)
      .sort((a, b) => b[0] - a[0]).slice(0, 40).map(([, row]) => row);
  };

  /** A text with the words of the query marked. */
  const marked = (text, patterns) => {
    const even = plain(text), parts = [];
    let last = 0;
    const marks = patterns.flatMap(each => [...even.matchAll(each)]).sort((a, b) => a.index - b.index);
    for (const { 0: word, index } of marks) {
      if (index < last) continue;
      const mark = document.createElement("mark");
      mark.textContent = text.slice(index, index + word.length);
      parts.push(text.slice(last, index), mark);
      last = index + word.length;
    }
    return [...parts, text.slice(last)];
  };

  /** The 200 letters in which most words of the query stand, with these marked. */
  const excerpt = (text, patterns) => {
    const even = plain(text), starts = patterns.flatMap(each => [...even.matchAll(each)].slice(0, 20).map(at => at.index));
    const hits = start => patterns.filter(each => count(even.slice(start, start + 160), each)).length;
    const best = starts.sort((a, b) => hits(b) - hits(a) || a - b)[0] ?? 0;
    const from = best < 60 ? 0 : text.indexOf(" ", best - 50) + 1;
    const paragraph = document.createElement("p");
    paragraph.append(...marked(text.slice(from, from + 200), patterns));
    if (from) paragraph.prepend("… ");
    if (from + 200 < text.length) paragraph.append(" …");
    return paragraph;
  };

  const root = document.documentElement.dataset.content_root ?? "./";
  const show = (query, place) => {
    const found = find(query), patterns = asked(query).map(pattern), [said, old] = place.children;
    said.textContent = found.length
      ? `${found.length === 40 ? "The first 40" : found.length} ${found.length === 1 ? "section" : "sections"} with “${query}”`
      : `No section has all of “${query}”. Fewer words find more.`;
    const list = document.createElement("ol");
    list.className = "found";
    for (const [address, page, title, text, , , , code] of found) {
      const link = document.createElement("a");
      link.href = root + address;
      link.append(...marked(title || page, patterns));
      // The page marks the words, too (sphinx_highlight.js).
      link.addEventListener("click", () => localStorage.setItem("sphinx_highlight_terms", query));
      const item = document.createElement("li");
      item.append(link, title ? ` ${page}` : "", excerpt(`${text} ${code}`, patterns));
      list.append(item);
    }
    old.replaceWith(list);
  };

  let loading;
  const load = () => loading ??= new Promise(done => {
    const script = document.createElement("script");
    script.src = `${root}_static/sections.js`;
    script.onload = done;
    document.head.append(script);
  });

  addEventListener("DOMContentLoaded", () => {
    const page = document.getElementById("search-results");
    const begun = page ? (new URLSearchParams(location.search).get("q") ?? "").trim() : "";
    document.querySelectorAll("form.bd-search").forEach(form => {
      const field = form.querySelector("input"), inPage = page && !form.closest("dialog");
      const place = inPage ? page : document.createElement("div");
      if (!inPage) form.after(place);
      place.classList.add("found-here");
      place.innerHTML = "<p role='status'></p><ol class='found'></ol>";  // only how many is read aloud
      const look = async () => {
        const query = field.value.trim();
        place.hidden = !query;
        if (!query) return;
        await load();
        if (field.value.trim() === query) show(query, place);
      };
      field.addEventListener("input", look);
      place.hidden = true;
      if (inPage && begun) { field.value = begun; look(); }
    });
  });

  return { find, load };
})();
