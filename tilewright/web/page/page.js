/** A page for one model: its inputs, its results, and how it runs. page.json says what inputs mean. */

import { imagePanel, numbersPanel, textPanel } from "./inputs.js";
import { resultCard } from "./results.js";

const $ = id => document.getElementById(id);
const worker = new Worker(new URL("page-worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
let count = 0;

/** A call of the worker. */
function ask(call, given) {
  return new Promise((done, failed) => {
    waiting.set(++count, { done, failed });
    worker.postMessage({ id: count, call, ...given });
  });
}

worker.onmessage = ({ data }) => {
  if (data.progress) return showProgress(data.progress);
  const { done, failed } = waiting.get(data.id);
  waiting.delete(data.id);
  if (data.wrong === undefined) done(data.value);
  else failed(new Error(data.wrong));
};
worker.onerror = e => showError(new Error(e.message || "the page's worker cannot be started"));

function showError(wrong) {
  $("error").textContent = wrong ? wrong.message : "";
  $("error").hidden = !wrong;
}

const size = n => (n < 1e6 ? `${Math.max(1, Math.round(n / 1e3))} KB` : `${(n / 1e6).toFixed(n < 1e8 ? 1 : 0)} MB`);

function showProgress({ loaded, total }) {
  $("loading-text").textContent = loaded < total ? "Loading weights" : "Starting";
  $("loading-bytes").textContent = `${size(loaded)} of ${size(total)}`;
  $("loading-bar").style.width = `${total ? (100 * loaded) / total : 100}%`;
}

function showFacts(facts) {
  $("facts").replaceChildren(...Object.entries(facts).map(([name, value]) => {
    const [box, dt, dd] = ["div", "dt", "dd"].map(x => document.createElement(x));
    [dt.textContent, dd.textContent] = [name, value];
    box.append(dt, dd);
    return box;
  }));
}

const PANELS = { image: imagePanel, text: textPanel, numbers: numbersPanel };

async function start() {
  const settings = await (await fetch("page.json")).json();
  document.title = $("title").textContent = settings.title;
  if (settings.about) $("about").textContent = settings.about;
  const threads = new URLSearchParams(location.search).get("threads");
  const options = threads ? { threads: Number(threads) } : {};
  const model = await ask("load", { url: settings.package, options });
  const facts = {
    Code: `${model.level.target}, ${size(model.level.bytes)}`,
    Weights: size(model.weights),
    Threads: model.threads,
  };
  showFacts(facts);
  const dims = dimFields(model, settings);
  let timer = 0;
  const panels = [];
  for (const [name, given] of Object.entries(settings.inputs)) {
    if (given.with) continue; // another input's panel gives it
    const described = model.inputs.find(x => x.name === name);
    const change = () => {
      clearTimeout(timer);
      timer = setTimeout(run, 150);
    };
    panels.push(await PANELS[given.kind](described, given, dims, change, model.inputs));
  }
  const runs = document.createElement("button");
  Object.assign(runs, { textContent: "Run", className: "main", type: "button", onclick: () => run() });
  const last = panels[panels.length - 1]?.card ?? document.createElement("div");
  (last.querySelector(".row") ?? last).append(runs);
  $("inputs").replaceChildren(...(dims.card ? [dims.card] : []), ...panels.map(x => x.card));
  $("loading").hidden = true;
  $("model").hidden = false;
  let busy = false;
  let again = false;

  /** Computes with what the panels have; what changed meanwhile is computed next. */
  async function run(times = 1) {
    if (busy) return void (again = true);
    busy = runs.disabled = true;
    try {
      const given = Object.assign({}, ...panels.map(x => x.value()));
      const missing = panels.find(x => !x.ready());
      if (missing) throw new Error(missing.wants);
      const { results, milliseconds } = await ask("run", { inputs: given, dims: dims.values(), times });
      const middle = milliseconds.sort((a, b) => a - b)[milliseconds.length >> 1];
      const what = times > 1 ? `median of ${times}` : "one run";
      showFacts({ ...facts, "Time per run": `${middle < 10 ? middle.toFixed(2) : middle.toFixed(0)} ms, ${what}` });
      $("results").replaceChildren(...model.outputs.map(x => resultCard(x.name, results[x.name], settings)));
      $("measure").hidden = false;
      showError(null);
    } catch (wrong) {
      showError(wrong);
    }
    busy = runs.disabled = false;
    if (again) {
      again = false;
      run();
    }
  }

  $("measure").onclick = () => run(10);
  document.documentElement.dataset.ready = "yes";
}

/** Fields for the sizes that a call chooses, but those that a text's length decides. */
function dimFields(model, settings) {
  const lengths = Object.entries(settings.inputs).filter(([, x]) => x.kind === "text");
  const decided = new Set(lengths.flatMap(([name]) => model.inputs.find(x => x.name === name).shape.slice(1)));
  const fields = new Map();
  const set = new Map(); // by panels
  for (const [name, [low, high]] of Object.entries(model.dims)) {
    if (decided.has(name)) continue;
    const field = document.createElement("input");
    Object.assign(field, { type: "number", min: low, max: high ?? "", value: Math.max(low, 1) });
    fields.set(name, field);
  }
  const values = () => Object.fromEntries(Object.keys(model.dims).map(d => [d, Number(set.get(d) ?? fields.get(d)?.value)]));
  const shape = shape => shape.map(d => (typeof d === "number" ? d : values()[d]));
  let card = null;
  if (fields.size) {
    card = document.createElement("div");
    card.className = "card";
    card.innerHTML = "<h2>Sizes</h2><div class=row></div>";
    for (const [name, field] of fields) {
      const label = document.createElement("label");
      label.append(name, field);
      card.lastChild.append(label);
    }
  }
  return { card, fields, values, shape, set: (name, value) => set.set(name, value) };
}

start().catch(wrong => {
  $("loading").hidden = true;
  showError(wrong);
});
