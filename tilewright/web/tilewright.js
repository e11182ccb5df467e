/** Runs packages of Tilewright in a browser. Types and what each part does: tilewright.d.ts. */

const FORMAT = 2; // the newest that is read
const PAGE = 65536;
const FIRST_PAGES = 256; // of memory that threads share: stack and data fit
const LINE = 64; // alignment of all that code reads, and bytes between integers that checks leave
const STACK = 1 << 20; // of each further thread
const WORKER = "tilewright worker";

/** What lies in memory, by dtype; 16-bit floats are their bits. */
const ARRAYS = {
  f32: Float32Array, f64: Float64Array, f16: Uint16Array, bf16: Uint16Array,
  i8: Int8Array, i16: Int16Array, i32: Int32Array, i64: BigInt64Array,
  u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, u64: BigUint64Array, bool: Uint8Array,
};

/** The same sentences as of the runtimes in C and Python. */
const SENTENCES = {
  FILE: "%s cannot be read: %s",
  PACKAGE: "%s is no package: %s",
  FORMAT: "%s is a package of format %d, and this runtime reads formats up to %d",
  OUTSIDE: "%s: its manifest names the file %s, which is outside of the package",
  SIZE: "%s: %s has %d bytes, and the manifest says %d: the file is truncated or another one",
  ALTERED: "%s: %s is not the file that was packaged: its checksum differs",
  ARCHITECTURE: "%s has code for %s, and this machine is %s",
  FEATURE: "%s: code for %s needs %s, which this processor lacks or the system does not permit",
  LOAD: "%s: %s cannot be loaded: %s",
  MEMORY: "%d bytes of memory are not available",
  DTYPE: "%s is of dtype %s, and %s was given",
  SHAPE: "%s has the shape %s, and %s was given",
  BOUNDS: "the dim %s is %d, and the package is for %s",
  CHECK: "%s",
  ARGUMENT: "%s",
};

export class TilewrightError extends Error {
  constructor(code, ...values) {
    super(SENTENCES[code].replace(/%[sd]/g, () => values.shift()));
    this.name = "TilewrightError";
    this.code = code;
  }
}

const refuse = (code, ...values) => { throw new TilewrightError(code, ...values); };
const need = (held, code, ...values) => held || refuse(code, ...values);
const roundUp = (n, to) => Math.ceil(n / to) * to;
const product = shape => shape.reduce((a, b) => a * b, 1);
const shown = shape => `[${shape.join(", ")}]`;
const isolated = () => globalThis.crossOriginIsolated ?? typeof SharedArrayBuffer === "function";

const code = hex => Uint8Array.from(hex.match(/../g), x => parseInt(x, 16));

/** Does the one function of a module give a number other than 0? */
function gives(hex) {
  try {
    return Object.values(new WebAssembly.Instance(new WebAssembly.Module(code(hex))).exports)[0]() !== 0;
  } catch {
    return false;
  }
}

/** Words of a feature's test, which all have to hold of this engine. */
const TESTS = {
  validate: hex => WebAssembly.validate(code(hex)),
  run: gives,
  shared: isolated,
};

function passes(test) {
  return test.split(" ").every(word => {
    const [kind, value] = word.split(":");
    return Object.hasOwn(TESTS, kind) && TESTS[kind](value);
  });
}

export async function load(url, options = {}) {
  const threads = threadsOf(options.threads);
  const files = new Files(url, options.fetch ?? ((...x) => fetch(...x)));
  const manifest = await manifestOf(files);
  const level = chosen(manifest, threads, files.url);
  const code = await files.checked(level);
  const module = await WebAssembly.compile(code).catch(e => refuse("LOAD", files.url, level.file, e.message));
  const model = new Model(manifest, level, module, shares(level) ? threads : 1);
  await model._fill(files, options.onProgress ?? (() => {}), options.verifyWeights);
  await model._start();
  return model;
}

function threadsOf(given) {
  const found = given ?? Math.min(globalThis.navigator?.hardwareConcurrency ?? 1, 4);
  need(Number.isInteger(found) && found >= 1 && found <= 64, "ARGUMENT", "the number of threads must be between 1 and 64");
  return found;
}

/** The files of a package in a folder of the web, by its address or its manifest's. */
class Files {
  constructor(url, fetch) {
    const whole = new URL(url, globalThis.document?.baseURI ?? globalThis.location?.href);
    if (!/\.json$|\/$/.test(whole.pathname)) whole.pathname += "/";
    this.url = new URL(".", whole).href;
    this.fetch = fetch;
  }

  async open(file) {
    const url = new URL(file, this.url).href;
    const found = await this.fetch(url).catch(e => refuse("FILE", url, e.message));
    need(found.ok, "FILE", url, `the server says ${found.status} ${found.statusText}`.trim());
    return found;
  }

  async checked({ file, bytes, sha256 }) {
    const found = new Uint8Array(await (await this.open(file)).arrayBuffer());
    need(found.length === bytes, "SIZE", this.url, file, found.length, bytes);
    await this.same(found, file, sha256);
    return found;
  }

  /** Compares a checksum; a page without https or localhost has no function for that. */
  async same(bytes, file, sha256) {
    if (!sha256 || !globalThis.crypto?.subtle) return;
    const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    const text = Array.from(sum, x => x.toString(16).padStart(2, "0")).join("");
    need(text === sha256, "ALTERED", this.url, file);
  }
}

async function manifestOf(files) {
  const text = await (await files.open("manifest.json")).text();
  let found;
  try {
    found = JSON.parse(text);
  } catch (e) {
    refuse("PACKAGE", files.url, `its manifest is not JSON: ${e.message}`);
  }
  const lacks = what => refuse("PACKAGE", files.url, `its manifest lacks ${what}`);
  if (!found || !("format" in found)) lacks("its format");
  need(found.format >= 1 && found.format <= FORMAT, "FORMAT", files.url, found.format, FORMAT);
  for (const part of ["inputs", "outputs", "levels", "checks"]) if (!Array.isArray(found[part])) lacks(part);
  if (!found.dims || !found.weights) lacks("dims or weights");
  for (const x of [...found.levels, found.weights]) {
    if (typeof x.file !== "string" || !Number.isSafeInteger(x.bytes)) lacks("a file, its bytes or its checksum");
    const parts = x.file.split("/");
    const inside = parts.every(p => /^[\w.+-]+$/.test(p) && p !== "." && p !== "..");
    need(inside, "OUTSIDE", files.url, x.file);
  }
  for (const x of [...found.inputs, ...found.outputs])
    need(Object.hasOwn(ARRAYS, x.dtype) && Array.isArray(x.shape), "PACKAGE", files.url, "a dtype is unknown");
  return found;
}

const shares = level => Object.hasOwn(level.features ?? {}, "atomics");

/** The first level, which is the best, that this engine has everything for. */
function chosen(manifest, threads, url) {
  const own = manifest.levels.filter(x => x.architecture === "wasm32");
  const others = [...new Set(manifest.levels.map(x => x.architecture))].join(", ");
  need(own.length, "ARCHITECTURE", url, others, "wasm32");
  const lacks = x => Object.keys(x.features ?? {}).filter(f => !passes(x.features[f]));
  const found = own.find(x => !lacks(x).length && (threads > 1 || !shares(x)));
  const least = own[own.length - 1];
  return found ?? refuse("FEATURE", url, least.target, lacks(least).join(", ") || "several threads");
}

class Model {
  constructor(manifest, level, module, threads) {
    Object.assign(this, { manifest, level, threads, _module: module, _workers: [] });
    const { name, inputs, outputs, dims } = manifest;
    Object.assign(this, { name, inputs, outputs, dims, milliseconds: 0 });
    const imports = shares(level) ? { env: { memory: sharedMemory() } } : {};
    this._code = new WebAssembly.Instance(module, imports).exports;
    this._memory = imports.env?.memory ?? this._code.memory;
    this._code.__wasm_init_memory?.();
    this._end = this._code.__heap_base.value; // what is free of our own memory: from here
    this._limit = this._memory.buffer.byteLength; // to there
    this._area = { at: 0, size: 0 }; // of the calls
  }

  /** So many bytes, for good. Code may have made memory grow meanwhile: then ours goes on behind. */
  _take(size) {
    this._end = roundUp(this._end, LINE);
    if (this._end + size > this._limit) {
      const now = this._memory.buffer.byteLength;
      if (now !== this._limit) this._end = now;
      try {
        this._memory.grow(Math.ceil((this._end + size - now) / PAGE));
      } catch {
        refuse("MEMORY", this._end + size);
      }
      this._limit = this._memory.buffer.byteLength;
    }
    const at = this._end;
    this._end += size;
    return at;
  }

  /** Reads the weights into memory as they arrive. */
  async _fill(files, onProgress, verify) {
    const { file, bytes: total, sha256, unpacked } = this.manifest.weights;
    const at = (this._weights = this._take(total));
    const wrong = found => refuse("SIZE", files.url, file, found, total);
    let loaded = 0;
    onProgress({ file, loaded, total });
    const reader = total ? (await files.open(file)).body.getReader() : null;
    for (let next = await reader?.read(); next && !next.done; next = await reader.read()) {
      if (loaded + next.value.length > total) {
        reader.cancel();
        wrong(loaded + next.value.length);
      }
      new Uint8Array(this._memory.buffer).set(next.value, at + loaded);
      loaded += next.value.length;
      onProgress({ file, loaded, total });
    }
    if (loaded !== total) wrong(loaded);
    // Shared memory has to be copied for the checksum.
    if (verify) await files.same(new Uint8Array(this._memory.buffer, at, total).slice(), file, sha256);
    if (!unpacked) return;
    // Calls read a wider copy, and may use the place of the file.
    this._code.tw_unpack(at, (this._weights = this._take(unpacked)));
    this._area = { at, size: total };
  }

  /** Starts the other threads, and returns when they are there. */
  async _start() {
    if (this.threads < 2) return;
    this._code.tw_pool_resize(BigInt(this.threads));
    const started = Array.from({ length: this.threads - 1 }, (_, k) => new Promise((ready, failed) => {
      const worker = new Worker(new URL(import.meta.url), { type: "module", name: WORKER });
      this._workers.push(worker);
      worker.onmessage = ready;
      worker.onerror = e => failed(new TilewrightError("ARGUMENT", `a worker cannot be started: ${e.message ?? "refused"}`));
      const stack = this._take(STACK) + STACK;
      worker.postMessage({ module: this._module, memory: this._memory, number: k + 1, stack });
    }));
    await Promise.all(started).catch(e => { this.close(); throw e; });
  }

  async run(inputs, dims) {
    need(this._code, "ARGUMENT", `${this.name} was closed`);
    const given = this._given(inputs ?? {});
    const values = this._values(given, dims ?? {});
    const shapes = this._shapes(values);
    this.inputs.forEach((x, k) => {
      const { data, shape } = given[k];
      const other = shape && (shape.length !== shapes[k].length || shape.some((n, d) => n !== shapes[k][d]));
      need(!other, "SHAPE", x.name, shown(x.shape), shown(shape ?? []));
      need(data.length === product(shapes[k]), "SHAPE", x.name, shown(shapes[k]), `an array of ${data.length}`);
    });
    return this._run(given, values, shapes);
  }

  /** The inputs in order, each as {data, shape?}. */
  _given(inputs) {
    const names = this.inputs.map(x => x.name);
    for (const name of Object.keys(inputs))
      need(names.includes(name), "ARGUMENT", `${this.name} has no input ${name}: it takes ${names.join(", ") || "none"}`);
    return this.inputs.map(x => {
      need(Object.hasOwn(inputs, x.name), "ARGUMENT", `the input ${x.name} is missing`);
      const value = inputs[x.name];
      const found = ArrayBuffer.isView(value) ? { data: value } : value;
      const fits = found?.data instanceof ARRAYS[x.dtype] || (x.dtype === "u8" && found?.data instanceof Uint8ClampedArray);
      const kind = found?.data?.constructor.name ?? typeof value;
      need(fits, "DTYPE", x.name, `${x.dtype} (${ARRAYS[x.dtype].name})`, kind);
      return found;
    });
  }

  /** Values of the dims: as said, or of the first axis that is nothing but the dim. */
  _values(given, dims) {
    for (const name of Object.keys(dims)) need(Object.hasOwn(this.dims, name), "ARGUMENT", `${this.name} has no dim ${name}`);
    return Object.entries(this.dims).map(([name, [low, high]]) => {
      let value = dims[name];
      this.inputs.forEach((x, k) => x.shape.forEach((d, axis) => {
        if (d === name) value ??= given[k].shape?.[axis];
      }));
      need(value !== undefined, "ARGUMENT", `the dim ${name} is not known: run(inputs, {${name}: …}), or inputs as {data, shape}`);
      const within = Number.isSafeInteger(value) && value >= low && value <= (high ?? Infinity);
      need(within, "BOUNDS", name, value, high === null ? `${low} or more` : `${low} to ${high}`);
      return BigInt(value);
    });
  }

  /** Shapes of the inputs, then of the outputs, as the code computes them. */
  _shapes(values) {
    const all = [...this.inputs, ...this.outputs];
    const count = all.reduce((n, x) => n + x.shape.length, 0);
    const at = this._reserve(8 * (values.length + count));
    new BigInt64Array(this._memory.buffer, at, values.length).set(values);
    this._code.tw_shapes(at, at + 8 * values.length);
    const extents = Array.from(new BigInt64Array(this._memory.buffer, at + 8 * values.length, count), Number);
    return all.map(x => extents.splice(0, x.shape.length));
  }

  /** Memory that is a call's until the next one. */
  _reserve(size) {
    if (this._area.size < size) this._area = { at: this._take(size), size };
    return this._area.at;
  }

  _run(given, values, shapes) {
    const all = [...this.inputs, ...this.outputs];
    const counts = shapes.map(product);
    const workspace = Number(this._code.tw_workspace(this._area.at)); // where the dims still are
    // Dims, the addresses of the tensors, the tensors, the workspace.
    const places = [];
    let size = roundUp(8 * values.length + 4 * all.length, LINE);
    for (const n of [...all.map((x, k) => counts[k] * ARRAYS[x.dtype].BYTES_PER_ELEMENT), workspace]) {
      places.push(size);
      size += roundUp(n, LINE) + LINE;
    }
    const at = this._reserve(size);
    const view = k => new ARRAYS[all[k].dtype](this._memory.buffer, at + places[k], counts[k]);
    const table = at + 8 * values.length;
    new BigInt64Array(this._memory.buffer, at, values.length).set(values);
    new Uint32Array(this._memory.buffer, table, all.length).set(all.map((_, k) => at + places[k]));
    given.forEach((x, k) => view(k).set(x.data));
    const work = at + places[all.length];
    const start = performance.now();
    const failed = this._code.tw_run(this._weights, table, table + 4 * given.length, at, work);
    this.milliseconds = performance.now() - start;
    if (failed) this._tell(failed, work);
    // Where data decides sizes, results are at the beginning of memory for the most there may be.
    if (this._code.tw_results) this._results(at, work, shapes);
    const copy = k => ({ data: view(k).slice(0, product(shapes[k])), shape: shapes[k] });
    return Object.fromEntries(this.outputs.map((x, k) => [x.name, copy(given.length + k)]));
  }

  /** The shapes of outputs after a call, in the place of the most that they may be. */
  _results(dims, work, shapes) {
    const count = this.outputs.reduce((n, x) => n + x.shape.length, 0);
    const at = this._counts ??= this._take(8 * count);
    this._code.tw_results(dims, work, at);
    const extents = Array.from(new BigInt64Array(this._memory.buffer, at, count), Number);
    this.outputs.forEach((x, k) => { shapes[this.inputs.length + k] = extents.splice(0, x.shape.length); });
  }

  /** A check of the data failed; its integers are in the workspace. */
  _tell(number, work) {
    const [found, size] = new BigInt64Array(this._memory.buffer, work + LINE * number, 2);
    const words = this.manifest.checks[number - 1]?.words ?? "a check of the data failed";
    refuse("CHECK", words.replace("{index}", found > 0n ? found - 1n : found).replace("{size}", size));
  }

  close() {
    this._code?.tw_pool_resize?.(1n);
    this._workers.forEach(x => x.terminate());
    this._workers = [];
    this._code = this._memory = null;
  }
}

/** One memory for all threads, which may grow as far as the page permits. */
function sharedMemory() {
  for (let maximum = PAGE; maximum > FIRST_PAGES; maximum /= 2) {
    try {
      return new WebAssembly.Memory({ initial: FIRST_PAGES, maximum, shared: true });
    } catch {} // less may be possible
  }
  refuse("MEMORY", FIRST_PAGES * PAGE);
}

/** In a worker that `_start` made: a thread, until there are to be fewer. */
if (globalThis.name === WORKER && typeof document === "undefined") {
  onmessage = ({ data: { module, memory, number, stack } }) => {
    const code = new WebAssembly.Instance(module, { env: { memory } }).exports;
    code.__stack_pointer.value = stack;
    postMessage("ready");
    code.tw_worker(number);
    close();
  };
}
