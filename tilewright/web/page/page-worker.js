/** The model of the page, in a thread of its own: the page stays alive while it computes. */

import { load } from "./tilewright.js";

let model;

const calls = {
  async load({ url, options }) {
    const onProgress = progress => postMessage({ progress });
    model = await load(new URL(url, import.meta.url), { ...options, onProgress });
    const { name, inputs, outputs, dims, level, threads, manifest } = model;
    return { name, inputs, outputs, dims, level, threads, weights: manifest.weights.bytes };
  },
  /** The results, and milliseconds of each of some runs. */
  async run({ inputs, dims, times = 1 }) {
    const milliseconds = [];
    let results;
    for (let k = 0; k < times; k++) {
      results = await model.run(inputs, dims);
      milliseconds.push(model.milliseconds);
    }
    return { results, milliseconds };
  },
};

onmessage = async ({ data: { id, call, ...given } }) => {
  try {
    postMessage({ id, value: await calls[call](given) });
  } catch (wrong) {
    postMessage({ id, wrong: wrong.message ?? String(wrong) });
  }
};
