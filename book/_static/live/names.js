// Number names, as `attncourse.number_words.words` writes them: numberNames.en(94) is ["ninety", "four"].
"use strict";

const numberNames = (() => {
  const SMALL = {
    en: ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen " +
      "sixteen seventeen eighteen nineteen").split(" "),
    fr: "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize".split(" "),
  };
  const TENS = {
    en: "- - twenty thirty forty fifty sixty seventy eighty ninety".split(" "),
    fr: "- - vingt trente quarante cinquante soixante".split(" "),
  };

  const englishBelow1000 = n => {
    if (n >= 100) return [SMALL.en[Math.floor(n / 100)], "hundred", ...(n % 100 ? ["and", ...englishBelow1000(n % 100)] : [])];
    if (n < 20) return [SMALL.en[n]];
    return [TENS.en[Math.floor(n / 10)], ...(n % 10 ? [SMALL.en[n % 10]] : [])];
  };

  const en = n => {
    if (n < 1000) return englishBelow1000(n);
    const [unit, name] = [[1e9, "billion"], [1e6, "million"], [1e3, "thousand"]].find(([unit]) => n >= unit);
    const rest = n % unit;
    return [...en(Math.floor(n / unit)), name, ...(rest ? [...(rest < 100 ? ["and"] : []), ...en(rest)] : [])];
  };

  // *cents* and *quatre-vingts* have their s at the end of a number and before a noun; mille is none.
  const frenchBelow1000 = (n, plural) => {
    const hundreds = Math.floor(n / 100), tens = Math.floor(n / 10), s = plural ? "s" : "";
    if (hundreds) {
      const [count, rest] = [hundreds > 1 ? [SMALL.fr[hundreds]] : [], n % 100];
      return [...count, rest || hundreds === 1 ? "cent" : "cent" + s, ...(rest ? frenchBelow1000(rest, plural) : [])];
    }
    if (n <= 16) return [SMALL.fr[n]];
    if (n < 20) return ["dix", SMALL.fr[n - 10]];
    if (n >= 80) return ["quatre", n > 80 ? "vingt" : "vingt" + s, ...(n > 80 ? frenchBelow1000(n - 80) : [])];
    const [ten, rest] = tens === 7 ? [TENS.fr[6], n - 60] : [TENS.fr[tens], n % 10];
    return [ten, ...(rest % 10 === 1 ? ["et"] : []), ...(rest ? frenchBelow1000(rest) : [])];
  };

  const fr = n => {
    const written = [];
    for (const [unit, name] of [[1e9, "milliard"], [1e6, "million"]]) {
      const count = Math.floor(n / unit);
      if (count) written.push(...fr(count), count > 1 ? name + "s" : name);
      n %= unit;
    }
    const thousands = Math.floor(n / 1000);
    if (thousands) written.push(...(thousands > 1 ? frenchBelow1000(thousands, false) : []), "mille");
    if (n % 1000 || !written.length) written.push(...frenchBelow1000(n % 1000, true));
    return written;
  };

  return { en, fr };
})();
