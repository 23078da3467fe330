// The two models' forward passes, in the notation of the book (book/notation.md), in a browser or in Node.
//
// A vector is a Float32Array. A sequence is an array of vectors, one a position: the rows of (L, d_model).
// A matrix W is stored as torch stores it, (output features, input features), so that product(W, x) is W x.
"use strict";

globalThis.companionG2P = (() => {
  const PAD = 0, START = 1, END = 2; // phonemes from 3, letters from 1: companion/g2p/lexicon.py
  const MAX_PHONEMES = 40;

  // ---------------------------------------------------------------------------------------------------------------
  // Reading what companion/g2p/export.py wrote

  function bitReader(data) {
    let next = 0, held = 0, bits = 0;
    return (width) => {
      while (held < width) {
        bits = (bits << 15) | (data.charCodeAt(next++) - 0x3000);
        held += 15;
      }
      held -= width;
      const value = bits >>> held;
      bits &= (1 << held) - 1;
      return value;
    };
  }

  function float16(bits) {
    const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  }

  function readTensors({ tensors, data, bits, block }) {
    const read = bitReader(data), steps = 2 ** (bits - 1) - 1, found = {};
    for (const [name, { shape, exact }] of Object.entries(tensors)) {
      const values = new Float32Array(shape.reduce((size, axis) => size * axis, 1));
      let scale = 0;
      for (let i = 0; i < values.length; i++) {
        if (exact) {
          values[i] = float16(read(16));
        } else {
          if (i % block === 0) scale = float16(read(16)) / steps;
          values[i] = scale * (read(bits) - steps - 1);
        }
      }
      found[name] = { values, features: shape[shape.length - 1] };
    }
    return found;
  }

  // ---------------------------------------------------------------------------------------------------------------
  // Vectors

  const add = (x, y) => x.map((number, i) => number + y[i]);
  const join = (x, y) => Float32Array.of(...x, ...y);
  const argmax = (x) => x.reduce((best, number, i) => (number > x[best] ? i : best), 0);
  const sigmoid = (x) => 1 / (1 + Math.exp(-x));
  const row = ({ values, features }, i) => values.subarray(i * features, (i + 1) * features);

  function dot(x, y) {
    let sum = 0;
    for (let i = 0; i < x.length; i++) sum += x[i] * y[i];
    return sum;
  }

  function product({ values, features }, x) { // W x
    const result = new Float32Array(values.length / features);
    for (let i = 0, at = 0; i < result.length; i++) {
      let sum = 0;
      for (let j = 0; j < features; j++) sum += values[at++] * x[j];
      result[i] = sum;
    }
    return result;
  }

  // α_ij = exp(e_ij) / Σ_l exp(e_il), with the largest score subtracted first
  function softmax(scores) {
    const largest = Math.max(...scores);
    const exponentials = scores.map((score) => Math.exp(score - largest));
    const sum = exponentials.reduce((total, number) => total + number, 0);
    return exponentials.map((number) => number / sum);
  }

  // c_i = Σ_j α_ij v_j
  function weightedSum(weights, values) {
    const sum = new Float32Array(values[0].length);
    values.forEach((value, j) => {
      for (let k = 0; k < sum.length; k++) sum[k] += weights[j] * value[k];
    });
    return sum;
  }

  // ---------------------------------------------------------------------------------------------------------------
  // Chapter 2: a GRU reads, a GRU writes, additive attention between them (companion/g2p/models.py)

  function gru(x, h, wInput, wHidden, bInput, bHidden) {
    const a = add(product(wInput, x), bInput), b = add(product(wHidden, h), bHidden), d = h.length;
    return h.map((before, k) => {
      const reset = sigmoid(a[k] + b[k]), update = sigmoid(a[d + k] + b[d + k]);
      const candidate = Math.tanh(a[2 * d + k] + reset * b[2 * d + k]);
      return (1 - update) * candidate + update * before;
    });
  }

  function additiveModel(t) {
    const affine = (name, x) => add(product(t[`${name}.weight`], x), t[`${name}.bias`].values);

    function readOneWay(embedded, suffix) {
      const weights = ["weight_ih_l0", "weight_hh_l0"].map((name) => t[`encoder.${name}${suffix}`]);
      const biases = ["bias_ih_l0", "bias_hh_l0"].map((name) => t[`encoder.${name}${suffix}`].values);
      let h = new Float32Array(weights[1].features);
      return embedded.map((x) => (h = gru(x, h, ...weights, ...biases)));
    }

    return function start(letters) {
      const embedded = letters.map((letter) => row(t["letter_embedding.weight"], letter));
      const forward = readOneWay(embedded, "");
      const backward = readOneWay([...embedded].reverse(), "_reverse").reverse();
      const states = forward.map((state, j) => affine("to_states", join(state, backward[j]))); // h_j
      let state = affine("to_summary", join(forward.at(-1), backward[0])).map(Math.tanh); // s_0
      const projectedKeys = states.map((h) => product(t["attention.w_key"], h)); // W_2 h_j

      return function step(previous) {
        // e_ij = v^T tanh(W_1 s_(i-1) + W_2 h_j)
        const projectedQuery = product(t["attention.w_query"], state);
        const scores = projectedKeys.map((key) => dot(t["attention.v"].values, add(projectedQuery, key).map(Math.tanh)));
        const weights = softmax(scores);
        const context = weightedSum(weights, states); // c_i
        const input = join(row(t["phoneme_embedding.weight"], previous), context);
        state = gru(
          input, state, t["decoder.weight_ih"], t["decoder.weight_hh"],
          t["decoder.bias_ih"].values, t["decoder.bias_hh"].values,
        );
        return { logits: affine("to_logits", join(state, context)), weights, heads: {} };
      };
    };
  }

  // ---------------------------------------------------------------------------------------------------------------
  // Chapters 5 and 6: attention alone (companion/g2p/transformer.py)

  function addPosition(x, position) {
    return x.map((number, k) => {
      const angle = position / 10000 ** ((k - (k % 2)) / x.length);
      return number + (k % 2 ? Math.cos(angle) : Math.sin(angle));
    });
  }

  function transformer(t, { num_layers: numLayers, num_heads: numHeads }) {
    const affine = (name, x) => add(product(t[`${name}.weight`], x), t[`${name}.bias`].values);
    const layers = Array.from({ length: numLayers }, (_, layer) => layer);

    function norm(name, x) {
      const mean = x.reduce((sum, number) => sum + number, 0) / x.length;
      const variance = x.reduce((sum, number) => sum + (number - mean) ** 2, 0) / x.length;
      const weight = t[`${name}.weight`].values, bias = t[`${name}.bias`].values;
      return x.map((number, k) => ((number - mean) / Math.sqrt(variance + 1e-5)) * weight[k] + bias[k]);
    }

    const feedForward = (name, x) =>
      affine(`${name}.feed_forward.2`, affine(`${name}.feed_forward.0`, x).map((number) => Math.max(0, number)));

    // (d_model) -> (H, d_head)
    function splitHeads(x) {
      const size = x.length / numHeads;
      return Array.from({ length: numHeads }, (_, h) => x.subarray(h * size, (h + 1) * size));
    }

    // Keys and values of one more position: what is kept from step to step.
    function keep(kept, name, x) {
      kept.keys.push(splitHeads(affine(`${name}.key_projection`, x)));
      kept.values.push(splitHeads(affine(`${name}.value_projection`, x)));
      return kept;
    }
    const nothingKept = () => ({ keys: [], values: [] });

    // e_ij = q_i^T k_j / √d_head in every head; a head that is off adds nothing to the output
    function attend(name, x, { keys, values }, isOff) {
      const queries = splitHeads(affine(`${name}.query_projection`, x)), weights = [], contexts = [];
      queries.forEach((query, h) => {
        const scores = keys.map((key) => dot(query, key[h]) / Math.sqrt(query.length));
        weights.push(softmax(scores));
        contexts.push(isOff(h) ? new Float32Array(query.length) : weightedSum(weights[h], values.map((value) => value[h])));
      });
      return { output: affine(`${name}.output_projection`, contexts.reduce(join)), weights };
    }

    return function start(letters, headsOff) {
      const isOff = (kind, layer) => (head) => headsOff.has(`${kind} ${layer + 1}.${head + 1}`);

      let states = letters.map((letter, j) => addPosition(row(t["letter_embedding.weight"], letter), j));
      for (const layer of layers) {
        const name = `encoder.${layer}`, kept = nothingKept();
        const normed = states.map((x) => norm(`${name}.norms.0`, x));
        normed.forEach((x) => keep(kept, `${name}.self_attention`, x));
        states = states.map((x, j) => {
          x = add(x, attend(`${name}.self_attention`, normed[j], kept, isOff("encoder", layer)).output);
          return add(x, feedForward(name, norm(`${name}.norms.1`, x)));
        });
      }
      states = states.map((x) => norm("encoder_norm", x));
      const read = layers.map((layer) =>
        states.reduce((kept, x) => keep(kept, `decoder.${layer}.cross_attention`, x), nothingKept()));
      const written = layers.map(nothingKept);

      return function step(previous) {
        const heads = {};
        let x = addPosition(row(t["phoneme_embedding.weight"], previous), written[0].keys.length);
        for (const layer of layers) {
          const name = `decoder.${layer}`;
          const normed = norm(`${name}.norms.0`, x);
          keep(written[layer], `${name}.self_attention`, normed);
          x = add(x, attend(`${name}.self_attention`, normed, written[layer], isOff("decoder", layer)).output);
          const cross = attend(
            `${name}.cross_attention`, norm(`${name}.norms.1`, x), read[layer], isOff("cross", layer));
          x = add(x, cross.output);
          x = add(x, feedForward(name, norm(`${name}.norms.2`, x)));
          cross.weights.forEach((weights, h) => (heads[`cross ${layer + 1}.${h + 1}`] = weights));
        }
        return { logits: affine("to_logits", norm("decoder_norm", x)), weights: meanOfHeads(heads, headsOff), heads };
      };
    };
  }

  // Where the model looked: the mean over the heads that are on, or over all if none is.
  function meanOfHeads(heads, headsOff) {
    const on = Object.keys(heads).filter((head) => !headsOff.has(head));
    const counted = on.length ? on : Object.keys(heads);
    return heads[counted[0]].map((_, j) => counted.reduce((sum, head) => sum + heads[head][j], 0) / counted.length);
  }

  // ---------------------------------------------------------------------------------------------------------------

  // The likeliest next phoneme again and again, until END (greedy decoding).
  function pronounce(model, word, headsOff = new Set()) {
    const letters = [...word].map((letter) => model.letters.indexOf(letter) + 1);
    const step = model.start(letters, headsOff), steps = [];
    for (let previous = START; previous !== END && steps.length < MAX_PHONEMES; ) {
      const { logits, weights, heads } = step(previous);
      logits[PAD] = logits[START] = -Infinity;
      previous = argmax(logits);
      steps.push({ phoneme: previous === END ? "END" : model.phonemes[previous - 3], logits, weights, heads });
    }
    return steps;
  }

  // An exported object, ready to pronounce: {name, label, letters, phonemes, heads, start}.
  function readModel(exported) {
    const tensors = readTensors(exported), { name, label, letters, phonemes } = exported;
    const start = exported.kind === "additive" ? additiveModel(tensors) : transformer(tensors, exported);
    return { name, label, letters, phonemes, numLayers: exported.num_layers, numHeads: exported.num_heads, start };
  }

  return { readModel, pronounce };
})();
