// Finds sections of the book (SECTIONS, made by section_search.py) while one types, on the search page
// and in the box above any page. A word of the query begins a word of the section, of its titles or of
// the names that the glossary has for what it defines. A section may lack some words of the query, but
// then counts less, by how rare these are; a word that stands nowhere in the book is read as the nearest
// one that does. A section that defines what is asked for comes first.
"use strict";

const bookSearch = (() => {
  const LETTER = "[\\p{L}\\p{N}]";
  const SMALL = new Set(("a an and are at be between by can difference do does for from how i in is it me my of on or should " +
    "that the this to used versus vs was what when where which why with").split(" "));

  /** As long as the text: "multi-head" and "multi head" are the same. @param {string} text */
  const plain = text => text.toLowerCase().replace(/[-_()[\]/,.:;'’"“”?`]/g, " ");
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
    const letters = word.length < 4 ? [...word].filter(each => each !== "^").join("^") : stem(word);  // WQ is W^Q
    const same = letters.replace(/[.*+?${}()|[\]\\]/g, "\\$&").replaceAll("^", "\\^?").replaceAll("2", "[2²]");
    return RegExp(start + same + end, "giu");
  };
  const count = (text, each) => text.match(each)?.length ?? 0;

  /** How well a name is meant by the words: 1 if neither has others. */
  const meant = (patterns, name) => {
    const hit = patterns.filter(each => name.match(each)).length;
    return hit ** 2 / patterns.length / Math.max(hit, name.split(" ").length);
  };

  /** All that is compared, made plain once, and in how many places each word stands. */
  let known;
  const prepare = () => {
    if (known) return known;
    const often = new Map();
    const rows = SECTIONS.map(row => {
      const [, page, title, text, share, names, bold, code, told] = row, list = each => each.map(name => plain(name).trim());
      for (const word of new Set([title, page, text, ...names].join(" ").toLowerCase().match(/\p{L}{4,}/gu)))
        often.set(word, (often.get(word) ?? 0) + 1);
      return { row, share, page: plain(page), title: plain(title), text: plain(`${text} ${told}`), code: plain(code), names: list(names), bold: list(bold) };
    });
    return known = { rows, often };
  };

  /** How many letters are wrong, missing, too many or exchanged. @param {string} a @param {string} b */
  const slips = (a, b) => {
    let before, last, row = [...b, ""].map((_, j) => j);
    for (let i = 1; i <= a.length; i++) {
      [before, last, row] = [last, row, [i]];
      for (let j = 1; j <= b.length; j++) {
        row[j] = Math.min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
        if (before && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) row[j] = Math.min(row[j], before[j - 2] + 1);
      }
    }
    return row[b.length];
  };

  /** The word of the book that is nearest to one that stands nowhere. @param {string} word */
  const nearest = word => {
    const most = word.length < 5 ? 0 : word.length < 11 ? 1 : 2;
    const near = most ? [...prepare().often].filter(([other]) => other[0] === word[0] && Math.abs(other.length - word.length) <= most) : [];
    const [best] = near.map(([other, places]) => ({ other, places, wrong: slips(word, other) }))
      .filter(({ wrong }) => wrong <= most).sort((a, b) => a.wrong - b.wrong || b.places - a.places);
    return best?.other;
  };

  /** Where a word stands in a section; a name of one word is as good as a title. */
  const hits = ({ page, title, text, code, names }, word) => {
    const [inTitle, inPage, inText, inCode] = [title, page, text, code].map(part => count(part, word));
    const named = Math.max(Math.min(inTitle, 1), ...names.map(name => name.match(word) ? 1 / name.split(" ").length : 0));
    return named || inPage || inText || inCode ? { inTitle, named, inPage, inText, inCode } : null;
  };

  /** The words of a query that the book can answer, each with its hits; those that stand nowhere; and
   *  those that were misspelled, with what they are read as. @param {string} query */
  const read = query => {
    const words = [], nowhere = [], mended = [], all = asked(query);
    const look = (word, place, all) => {
      const each = pattern(word, place, all), found = prepare().rows.map(row => hits(row, each));
      const places = found.filter(Boolean).length;
      if (places) words.push({ word, each, found, rare: 0.2 + Math.log(1 + found.length / places) / Math.log(1 + found.length) });
      return places;
    };
    [...new Set(all)].forEach((word, place, each) => {
      if (look(word, place, each)) return;
      const other = nearest(word);
      if (other && look(other, place, each)) mended.push([word, other]);
      else nowhere.push(word);
    });
    const phrase = all.filter(word => !nowhere.includes(word)).map(word => new Map(mended).get(word) ?? word).join(" ");
    return { words, phrase, nowhere, mended };
  };

  const score = (all, place, { words, phrase, codes, asksWhy }) => {
    const { row, share, page, title, text, names, bold } = all, own = title || page, patterns = words.map(({ each }) => each);
    const total = words.reduce((sum, { rare }) => sum + rare, 0);
    let sum = own.includes(phrase) ? 15 : text.includes(phrase) ? 8 : 0, inOwn = 0, covered = 0, isHere = false;
    for (const { found, rare } of words) {
      const hit = found[place];
      if (!hit) continue;
      const { inTitle, named, inPage, inText, inCode } = hit;
      covered += rare / total;
      isHere ||= !title || named || inText || inCode;
      sum += rare / total * words.length * (20 * named + 8 * Math.min(inPage, 1) + Math.min(inText, 5) + Math.min(inCode, 5) / 5);
      inOwn += Math.min(title ? inTitle : inPage, 1);
    }
    if (covered < 0.3 || !isHere) return 0;
    sum += 15 * inOwn / asked(own).length;
    if (asksWhy && inOwn && /\bwhy\b/.test(own)) sum += 8;
    for (const code of codes) sum += row[3].includes(code) ? 40 + 5 * Math.min(row[3].split(code).length, 6) : 0;
    const fit = list => Math.min(1, list.reduce((all, name) => all + meant(patterns, name) ** 2, 0));
    const exact = names.includes(phrase) ? 80 : 0;  // a code of a report, too
    return exact + share * covered ** 2 * (sum + 80 * fit(names) + 30 * fit(bold));
  };

  /** The sections for a query as it was read, best first. */
  const ranked = (query, { words, phrase }) => {
    const terms = {
      words, phrase, asksWhy: /\bwhy\b/i.test(query),
      codes: query.match(/\p{L}{2,}(?:[_.]\p{L}{2,})+/gu) ?? [],  // names in code, as they are written
    };
    return words.length ? prepare().rows.map((each, place) => [score(each, place, terms), each.row, place]).filter(([points]) => points)
      .sort((a, b) => b[0] - a[0]).slice(0, 40) : [];
  };

  /** The sections for a query, best first. @param {string} query */
  const find = query => ranked(query, read(query)).map(([, row]) => row);

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
    const asking = read(query), { words, phrase, nowhere, mended } = asking;
    const best = ranked(query, asking), found = best.map(([, row]) => row);
    const patterns = words.map(({ each }) => each), [said, old] = place.children;
    const isWhole = best.every(([, , at]) => words.every(each => each.found[at]));
    const how = [
      found.length
        ? `${found.length === 40 ? "The first 40" : found.length} ${found.length === 1 ? "section" : "sections"} with ${isWhole ? "" : "all or most of "}“${query}”`
        : `No section has “${query}”`,
      ...mended.map(([word, other]) => `“${word}” is read as “${other}”`),
      ...found.length && nowhere.length ? [`not in the book: ${nowhere.map(word => `“${word}”`).join(", ")}`] : [],
    ];
    said.textContent = `${how.join("; ")}.`;
    const list = document.createElement("ol");
    list.className = "found";
    for (const [address, page, title, text, , , , code, told] of found) {
      const link = document.createElement("a");
      link.href = root + address;
      link.append(...marked(title || page, patterns));
      // The page marks the words, too (sphinx_highlight.js).
      link.addEventListener("click", () => localStorage.setItem("sphinx_highlight_terms", phrase));
      const item = document.createElement("li");
      item.append(link, title ? ` ${page}` : "", excerpt(`${text} ${told} ${code}`, patterns));
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
