// The book's stored models, run in the page. Names follow the package: a vector is a row of numbers,
// a matrix a list of rows, weights lie as torch keeps them (out in). Numbers are held in double
// precision; the weights are the stored ones, bit for bit:
// `model = await live.load("additive"); live.write(model, model.english.encode(["four"]))`.
"use strict";

/** @typedef {Float64Array | number[]} Vector */
/** @typedef {Vector[]} Matrix  rows of equal width */
/** @typedef {{words: string[], encode: (words: string[]) => number[], decode: (ids: number[]) => string[]}} Vocabulary */
/** @typedef {{logits: Vector, state: any, looks: Matrix}} Step  `looks`: one row of weights a head, over the source's words */
/**
 * @typedef {object} Model  what `attncourse.pretrained.load` loads
 * @property {string} kind
 * @property {Vocabulary} english
 * @property {Vocabulary} french
 * @property {Object<string, Matrix>} weights  a bias is a matrix of one row
 * @property {number} heads
 * @property {Set<string>} silent  heads that say nothing, such as "decoder.0.cross_attention.3"
 * @property {(name: string, value: any) => void} [trace]  is told what each part of the Transformer makes, word by word
 * @property {(source: number[]) => any} start  read the source
 * @property {(word: number, state: any) => Step} step  take in one target word, score the next
 */

const live = (() => {
  const BOS = 1, EOS = 2;  // ids of the marks around a sentence
  // --- vectors and matrices ----------------------------------------------------------------------

  /** @param {Vector} a @param {Vector} b @returns {number} */
  const dot = (a, b, from = 0, to = a.length) => {
    let sum = 0;
    for (let i = from; i < to; i++) sum += a[i] * b[i];
    return sum;
  };

  /** @param {Vector} a @param {Vector} b @returns {Float64Array} */
  const add = (a, b) => {
    const sum = new Float64Array(a.length);
    for (let i = 0; i < a.length; i++) sum[i] = a[i] + b[i];
    return sum;
  };

  /** W x + b. @param {Matrix} W @param {Vector} x @param {Vector} [bias] @returns {Float64Array} */
  const linear = (W, x, bias) => {
    const y = new Float64Array(W.length);
    for (let o = 0; o < W.length; o++) y[o] = dot(W[o], x) + (bias ? bias[o] : 0);
    return y;
  };

  /** The rows' average: weights (k), rows (k d) -> (d). @param {Vector} weights @param {Matrix} rows */
  const average = (weights, rows, into = new Float64Array(rows[0].length), from = 0, to = into.length) => {
    for (let k = 0; k < rows.length; k++) {
      for (let i = from; i < to; i++) into[i] += weights[k] * rows[k][i];
    }
    return into;
  };

  /** @param {Vector} a @param {Vector} b @returns {Float64Array} */
  const join = (a, b) => {
    const both = new Float64Array(a.length + b.length);
    return both.set(a), both.set(b, a.length), both;
  };

  /** @param {Vector} x @param {(value: number, place: number) => number} change @returns {Float64Array} */
  const each = (x, change) => {
    const y = new Float64Array(x.length);
    for (let i = 0; i < x.length; i++) y[i] = change(x[i], i);
    return y;
  };
  const sigmoid = value => 1 / (1 + Math.exp(-value));

  /** Weights that sum to one; a masked place gets 0, and so does every place of a row with none left.
   * @param {Vector} scores @param {boolean[]} [mask] true = may attend @returns {Float64Array} */
  const softmax = (scores, mask) => {
    const seen = place => !mask || mask[place];
    let most = -Infinity, sum = 0;
    scores.forEach((score, place) => { if (seen(place)) most = Math.max(most, score); });
    const weights = each(scores, (score, place) => seen(place) ? Math.exp(score - most) : 0);
    for (const weight of weights) sum += weight;
    return sum ? each(weights, weight => weight / sum) : weights;
  };

  /** @param {Vector} scores @returns {Float64Array} */
  const logSoftmax = scores => {
    const most = Math.max(...scores);
    const sum = scores.reduce((sum, score) => sum + Math.exp(score - most), 0);
    return each(scores, score => score - most - Math.log(sum));
  };

  /** Layer normalization. @param {Vector} x @param {Vector} scale @param {Vector} shift */
  const norm = (x, scale, shift) => {
    let mean = 0, square = 0;
    for (const value of x) mean += value / x.length;
    for (const value of x) square += (value - mean) ** 2 / x.length;
    const deviation = Math.sqrt(square + 1e-5);
    return each(x, (value, i) => scale[i] * (value - mean) / deviation + shift[i]);
  };

  /** One step of a gated recurrent unit; the gates r, z, n stand below each other in the weights.
   * @param {Vector} x @param {Vector} h @returns {Float64Array} */
  const gru = (x, h, W_input, W_hidden, bias_input, bias_hidden) => {
    const a = linear(W_input, x, bias_input), b = linear(W_hidden, h, bias_hidden), n = h.length;
    return each(h, (old, i) => {
      const r = sigmoid(a[i] + b[i]), z = sigmoid(a[n + i] + b[n + i]);
      return z * old + (1 - z) * Math.tanh(a[2 * n + i] + r * b[2 * n + i]);
    });
  };

  /** softmax(Q Kᵀ / √d) V. @param {Matrix} Q @param {Matrix} K @param {Matrix} V
   * @param {boolean[][]} [mask] (q k) @returns {{scores: Matrix, weights: Matrix, output: Matrix}} */
  const attend = (Q, K, V, mask) => {
    const scores = Q.map(query => each(linear(K, query), score => score / Math.sqrt(query.length)));
    const weights = scores.map((row, q) => softmax(row, mask && mask[q]));
    return { scores, weights, output: weights.map(row => average(row, V)) };
  };

  // --- the models: `start` reads a sentence, `step` takes in one word and scores the next --------

  /** @param {Model} model @param {string} part @param {Vector} x @param {Vector} h */
  const recur = ({ weights }, part, x, h, end = "") => gru(
    x, h, weights[`${part}.weight_ih${end}`], weights[`${part}.weight_hh${end}`],
    weights[`${part}.bias_ih${end}`][0], weights[`${part}.bias_hh${end}`][0]);

  /** The encoder's state after each word. @param {Model} model @param {number[]} source @returns {Matrix} */
  const annotate = (model, source) => {
    const embedding = model.weights["source_embedding.weight"];
    let state = new Float64Array(embedding[0].length);
    return source.map(word => (state = recur(model, "encoder", embedding[word], state, "_l0")));
  };

  /** @param {Model} model @param {string} name @param {Vector} x */
  const layer = ({ weights }, name, x) =>
    linear(weights[`${name}.weight`], x, weights[`${name}.bias`] && weights[`${name}.bias`][0]);

  /** Chapter 1: everything the decoder ever knows is the encoder's last state. */
  const fixed = model => ({
    start: source => annotate(model, source).at(-1),
    step: (word, state) => {
      state = recur(model, "decoder", model.weights["target_embedding.weight"][word], state, "_l0");
      return { logits: layer(model, "output", state), state, looks: [] };
    },
  });

  /** Chapter 2: before each word the decoder looks back at every state of the encoder. */
  const additive = model => ({
    start: source => {
      const keys = annotate(model, source);
      return { hidden: keys.at(-1), keys, asked: keys.map(key => layer(model, "attention.W_key", key)) };
    },
    step: (word, { hidden, keys, asked }) => {
      const query = layer(model, "attention.W_query", hidden), v = model.weights["attention.v.weight"][0];
      const weights = softmax(asked.map(key => dot(v, add(key, query).map(Math.tanh))));
      const context = average(weights, keys);
      hidden = recur(model, "decoder", join(model.weights["target_embedding.weight"][word], context), hidden);
      return { logits: layer(model, "output", join(hidden, context)), state: { hidden, keys, asked }, looks: [weights] };
    },
  });

  /** Chapter 7: attention alone. What a word was is kept as keys and values, layer by layer. */
  const transformer = model => {
    const has = path => `${path}.q_proj.weight` in model.weights;
    const seen = (name, value) => (model.trace && model.trace(name, value), value);
    const places = (side, part) => [0, 1, 2, 3].map(i => `${side}.${i}.${part}`).filter(has);
    const normed = (name, x) => seen(name, norm(x, model.weights[`${name}.weight`][0], model.weights[`${name}.bias`][0]));
    const embed = (side, word, place) => {
      const vector = model.weights[`${side}_embedding.weight`][word], width = vector.length;
      return seen(side, each(vector, (value, i) => {
        const angle = place / 10000 ** ((i - i % 2) / width);
        return value * Math.sqrt(width) + (i % 2 ? Math.cos(angle) : Math.sin(angle));
      }));
    };
    const network = (name, x) => {
      const hidden = seen(`${name}.hidden`, each(layer(model, `${name}.linear1`, x), value => Math.max(0, value)));
      return seen(`${name}.network`, layer(model, `${name}.linear2`, hidden));
    };

    /** One query over keys and values that are projected already. */
    const ask = (path, x, keys, values) => {
      const query = layer(model, `${path}.q_proj`, x), d = query.length / model.heads;
      const merged = new Float64Array(query.length), looks = [];
      for (let head = 0, from = 0, to = d; head < model.heads; head++, from += d, to += d) {
          const weights = softmax(keys.map(key => dot(query, key, from, to) / Math.sqrt(d)));
        looks.push(weights);
        if (!model.silent.has(`${path}.${head}`)) average(weights, values, merged, from, to);
      }
      return seen(path, { query, keys, looks, output: layer(model, `${path}.out_proj`, merged) });
    };
    const project = (path, part, rows) => rows.map(row => layer(model, `${path}.${part}_proj`, row));

    return {
      start: source => {
        let rows = source.map((word, place) => embed("source", word, place));
        for (const path of places("encoder", "self_attention")) {
          const name = path.replace(".self_attention", ""), read = rows.map(row => normed(`${name}.norm1`, row));
          const keys = project(path, "k", read), values = project(path, "v", read);
          rows = rows.map((row, place) => seen(`${name}.sum1`, add(row, ask(path, read[place], keys, values).output)));
          rows = rows.map(row => seen(`${name}.sum2`, add(row, network(name, normed(`${name}.norm2`, row)))));
        }
        const memory = rows.map(row => normed("encoder_norm", row));
        const layers = places("decoder", "cross_attention").map(path => ({
          path, keys: [], values: [],
          sourceKeys: project(path, "k", memory), sourceValues: project(path, "v", memory),
        }));
        return { place: 0, layers };
      },
      step: (word, { place, layers }) => {
        let x = embed("target", word, place);
        const looks = [];
        layers = layers.map(kept => {
          const name = kept.path.replace(".cross_attention", ""), own = `${name}.self_attention`;
          const read = normed(`${name}.norm1`, x);
          const keys = [...kept.keys, layer(model, `${own}.k_proj`, read)];
          const values = [...kept.values, layer(model, `${own}.v_proj`, read)];
          x = seen(`${name}.sum1`, add(x, ask(own, read, keys, values).output));
          const look = ask(kept.path, normed(`${name}.norm2`, x), kept.sourceKeys, kept.sourceValues);
          looks.push(...look.looks);
          x = seen(`${name}.sum2`, add(x, look.output));
          x = seen(`${name}.sum3`, add(x, network(name, normed(`${name}.norm3`, x))));
          return { ...kept, keys, values };
        });
        return { logits: layer(model, "output", normed("decoder_norm", x)), state: { place: place + 1, layers }, looks };
      },
    };
  };
  // --- writing -----------------------------------------------------------------------------------

  const likeliest = logits => logits.indexOf(Math.max(...logits));

  /** Write word after word, each time the likeliest; at some places, a word that is told.
   * @param {Model} model @param {number[]} source ids
   * @param {Object<number, number>} [told] place -> id @param {number} [most] words
   * @returns {{words: number[], looks: Matrix[], logits: Matrix, ended: boolean}} one entry a word, <eos> left out of `words` */
  const write = (model, source, told = {}, most = 30) => {
    let state = model.start(source), word = BOS, step;
    const words = [], looks = [], logits = [];
    for (let place = 0; place < most; place++) {
      ({ state, ...step } = model.step(word, state));
      word = told[place] ?? likeliest(step.logits);
      looks.push(step.looks);
      logits.push(step.logits);
      if (word === EOS) return { words, looks, logits, ended: true };
      words.push(word);
    }
    return { words, looks, logits, ended: false };
  };

  /** Keep the `width` likeliest beginnings (chapter 9); `told` as above. @returns {number[]} ids, without <eos> */
  const beam = (model, source, width, told = {}, most = 30) => {
    let kept = [{ words: [], total: 0, state: model.start(source), ended: false }];
    for (let place = 0; place < most && !kept[0].ended; place++) {
      kept = kept.flatMap(each => {
        if (each.ended) return [each];  // says <eos> again, which costs nothing
        const { logits, state } = model.step(each.words.at(-1) ?? BOS, each.state);
        return [...logSoftmax(logits)].map((log, word) =>
          ({ words: [...each.words, word], total: each.total + log, state, ended: word === EOS }))
          .filter((_, word) => word === (told[place] ?? word));
      }).sort((a, b) => b.total - a.total).slice(0, width);
    }
    return kept[0].words.filter(word => word !== EOS);
  };

  /** Whether every next word is right, given the right words so far: so is the translation (chapter 1).
   * @param {Model} model @param {number[]} source @param {number[]} target */
  const right = (model, source, target) => {
    let state = model.start(source), word = BOS;
    return [...target, EOS].every(wanted => {
      const step = model.step(word, state);
      [state, word] = [step.state, wanted];
      return likeliest(step.logits) === wanted;
    });
  };
  // --- loading -----------------------------------------------------------------------------------

  // Name -> base64 of a deflated header, low bytes and high bytes of all weights; a file calls `store`.
  const stored = {}, store = (name, text) => { stored[name] = text; };

  /** What `half` bytes say. Source: IEEE 754, binary16. */
  const half = (low, high) => {
    const exponent = high >> 2 & 31, fraction = ((high & 3) << 8 | low) / 1024;
    return (high >> 7 ? -1 : 1) * (exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction);
  };

  /** @param {string[]} words @returns {Vocabulary} */
  const vocabulary = words => ({
    words, encode: sentence => sentence.map(word => words.indexOf(word)), decode: ids => ids.map(id => words[id]),
  });

  /** @param {string} name of a model whose weights the page has @returns {Promise<Model>} */
  const load = async name => {
    const packed = Uint8Array.from(atob(stored[name]), letter => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const start = 4 + new DataView(bytes.buffer).getUint32(0);
    const { kind, heads, english, french, shapes } = JSON.parse(new TextDecoder().decode(bytes.subarray(4, start)));
    const middle = (bytes.length - start) / 2, weights = {};
    let at = start;
    for (const [name, rows, columns] of shapes) {
      weights[name] = Array.from({ length: rows }, () =>
        Float64Array.from({ length: columns }, () => half(bytes[at], bytes[middle + at++])));
    }
    const model = { kind, heads, weights, silent: new Set(), english: vocabulary(english), french: vocabulary(french) };
    return Object.assign(model, { fixed, additive, transformer }[kind](model));
  };

  return { BOS, EOS, softmax, attend, write, beam, right, store, load };
})();
