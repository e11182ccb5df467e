/** Panels for inputs: an image, a text, or numbers. Each has `value()`: arrays by input. */

const ARRAYS = {
  f32: Float32Array, f64: Float64Array, f16: Uint16Array, bf16: Uint16Array,
  i8: Int8Array, i16: Int16Array, i32: Int32Array, i64: BigInt64Array,
  u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, u64: BigUint64Array, bool: Uint8Array,
};

/** Numbers as elements of a dtype. */
export function arrayOf(dtype, values) {
  const make = ARRAYS[dtype];
  const whole = make === BigInt64Array || make === BigUint64Array;
  if (dtype === "bf16") return Uint16Array.from(values, x => bitsOf(x) >>> 16);
  if (dtype === "f16") return Uint16Array.from(values, halfOf);
  return make.from(values, whole ? x => BigInt(Math.round(x)) : x => x);
}

const scratch = new DataView(new ArrayBuffer(4));

function bitsOf(x) {
  scratch.setFloat32(0, x);
  return scratch.getUint32(0);
}

/** The bits of the nearest half-precision number; those that are too small become zero. */
function halfOf(x) {
  const bits = bitsOf(x);
  const sign = (bits >>> 16) & 0x8000;
  const rounded = (bits & 0x7fffffff) + 0x1000;
  if (rounded >= 0x47800000) return sign | (Number.isNaN(x) ? 0x7e00 : 0x7c00);
  return rounded < 0x38800000 ? sign : sign | ((rounded - 0x38000000) >>> 13);
}

function panel(title, detail) {
  const card = document.createElement("div");
  card.className = "card";
  const head = card.appendChild(document.createElement("h2"));
  head.textContent = `${title} `;
  head.appendChild(document.createElement("small")).textContent = detail;
  return card;
}

const typed = x => `${x.dtype} [${x.shape.join(", ")}]`;

function button(text, onclick) {
  return Object.assign(document.createElement("button"), { textContent: text, type: "button", onclick });
}

/** An image, by drop, choice or paste: cut to the input's shape, resized and normalised. */
export async function imagePanel(x, given, dims, change) {
  const card = panel("Image", typed(x));
  const zone = card.appendChild(document.createElement("div"));
  Object.assign(zone, { className: "drop", tabIndex: 0, role: "button" });
  zone.innerHTML = "<strong>Drop an image here</strong><span>or click to choose one, or paste it</span>";
  const chooser = Object.assign(document.createElement("input"), { type: "file", accept: "image/*", hidden: true });
  const row = card.appendChild(document.createElement("div"));
  row.className = "row";
  row.append(button("Noise", () => show(noise())));
  card.append(chooser);
  let canvas = null;

  const size = () => {
    const shape = dims.shape(x.shape);
    return given.layout === "NHWC" ? [shape[1], shape[2], shape[3]] : [shape[2], shape[3], shape[1]];
  };

  function show(found) {
    canvas = found;
    zone.replaceChildren(canvas);
    change();
  }

  function noise() {
    const [height, width] = size();
    const made = new OffscreenCanvas(width, height);
    const pixels = new ImageData(width, height);
    for (let k = 0; k < pixels.data.length; k++) pixels.data[k] = k % 4 === 3 ? 255 : Math.random() * 256;
    made.getContext("2d").putImageData(pixels, 0, 0);
    return fitted(made);
  }

  /** The middle of the picture, in the input's proportions; all of it where `fit` says so. */
  function fitted(picture) {
    const [height, width] = size();
    const made = Object.assign(document.createElement("canvas"), { width, height });
    const whole = given.fit === "stretch";
    const scale = Math.min(picture.width / width, picture.height / height) * (given.crop ?? 1);
    const [w, h] = whole ? [picture.width, picture.height] : [width * scale, height * scale];
    const context = made.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingQuality = "high";
    context.drawImage(picture, (picture.width - w) / 2, (picture.height - h) / 2, w, h, 0, 0, width, height);
    return made;
  }

  async function take(file) {
    if (!file) return;
    try {
      show(fitted(await createImageBitmap(file)));
    } catch {
      zone.innerHTML = "<strong>This is no image that the browser can read</strong><span>try a JPEG, PNG or WebP file</span>";
    }
  }

  zone.onclick = () => chooser.click();
  zone.onkeydown = e => (e.key === "Enter" || e.key === " ") && chooser.click();
  chooser.onchange = () => take(chooser.files[0]);
  zone.ondragover = e => (e.preventDefault(), zone.classList.add("over"));
  zone.ondragleave = () => zone.classList.remove("over");
  zone.ondrop = e => {
    e.preventDefault();
    zone.classList.remove("over");
    take(e.dataTransfer.files[0]);
  };
  addEventListener("paste", e => take([...(e.clipboardData?.files ?? [])][0]));

  function value() {
    if (!canvas) return {};
    const [height, width, channels] = size();
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    const planes = given.layout !== "NHWC";
    const values = new Float32Array(width * height * channels);
    for (let p = 0; p < width * height; p++) {
      const grey = 0.299 * data[4 * p] + 0.587 * data[4 * p + 1] + 0.114 * data[4 * p + 2];
      for (let c = 0; c < channels; c++) {
        const byte = channels === 1 ? grey : c < 4 ? data[4 * p + c] : 0;
        const v = (byte * given.scale - given.mean[c]) / given.std[c];
        values[planes ? c * width * height + p : p * channels + c] = v;
      }
    }
    return { [x.name]: { data: arrayOf(x.dtype, values), shape: dims.shape(x.shape) } };
  }
  return { card, value, ready: () => canvas !== null, wants: "Give it an image first." };
}

/** A text, in word pieces of a vocabulary; it gives masks and kinds of tokens too. */
export async function textPanel(x, given, dims, change, inputs) {
  const words = await (await fetch(given.vocabulary)).text();
  const vocabulary = new Map(words.split("\n").map((word, k) => [word.replace(/\r$/, ""), k]));
  const card = panel("Text", typed(x));
  const area = card.appendChild(document.createElement("textarea"));
  area.placeholder = "Write something";
  const shown = card.appendChild(document.createElement("div"));
  shown.className = "tokens";
  const row = card.appendChild(document.createElement("div"));
  row.className = "row";
  const fixed = typeof x.shape[1] === "number" ? x.shape[1] : null;
  const bounds = fixed === null ? given.bounds : [1, fixed];
  let tokens = [];

  function read() {
    const most = bounds[1] ?? 512;
    const whole = given.mask || fixed === null; // without a mask, tokens that fill up would count
    tokens = ["[CLS]", ...pieces(area.value, vocabulary, given.lower).slice(0, most - 2), "[SEP]"];
    while (tokens.length < (fixed ?? bounds[0])) tokens.push("[PAD]");
    shown.replaceChildren(...tokens.filter(t => t !== "[PAD]" || !whole).map(t => {
      return Object.assign(document.createElement("span"), { textContent: t });
    }));
    if (fixed === null) dims.set(x.shape[1], tokens.length);
  }
  area.oninput = () => (read(), change());
  read();

  function value() {
    const filled = tokens.map(t => vocabulary.get(t) ?? vocabulary.get("[UNK]") ?? 0);
    const found = { [x.name]: filled };
    if (given.mask) found[given.mask] = tokens.map(t => (t === "[PAD]" ? 0 : 1));
    if (given.types) found[given.types] = tokens.map(() => 0);
    return Object.fromEntries(Object.entries(found).map(([name, values]) => {
      const described = inputs.find(y => y.name === name);
      return [name, { data: arrayOf(described.dtype, values), shape: dims.shape(described.shape) }];
    }));
  }
  return { card, value, ready: () => area.value.trim() !== "", wants: "Write a text first." };
}

/** Word pieces: words and signs, each cut into the longest parts that the vocabulary has. */
export function pieces(text, vocabulary, lower) {
  if (lower) text = text.toLowerCase().normalize("NFD").replace(/\p{Mn}/gu, "");
  const words = text.match(/[\p{L}\p{N}\p{M}]+|[^\s\p{L}\p{N}\p{M}]/gu) ?? [];
  return words.flatMap(word => {
    const found = [];
    for (let at = 0; at < word.length; ) {
      let end = word.length;
      const part = () => (at ? "##" : "") + word.slice(at, end);
      while (end > at && !vocabulary.has(part())) end--;
      if (end === at) return ["[UNK]"];
      found.push(part());
      at = end;
    }
    return found;
  });
}

/** Numbers as text, or in a file that is dropped; one number fills the input. */
export async function numbersPanel(x, given, dims, change) {
  const card = panel(x.name, typed(x));
  const area = card.appendChild(document.createElement("textarea"));
  area.className = "numbers";
  area.spellcheck = false;
  area.placeholder = "Numbers, or drop a file with them";
  const row = card.appendChild(document.createElement("div"));
  row.className = "row";
  const count = () => dims.shape(x.shape).reduce((a, b) => a * b, 1);
  const whole = !/^(f|bf)/.test(x.dtype);
  const fill = make => () => {
    area.value = Array.from({ length: count() }, make).join(", ");
    change();
  };
  const any = whole ? () => Math.floor(Math.random() * (given.below ?? 10)) : () => (Math.random() * 2 - 1).toFixed(3);
  row.append(button("Random", fill(any)), button("Zeros", fill(() => 0)), button("Ones", fill(() => 1)));
  area.oninput = change;
  area.ondragover = e => e.preventDefault();
  area.ondrop = async e => {
    const file = e.dataTransfer.files[0];
    if (!file) return;
    e.preventDefault();
    area.value = (await file.text()).trim();
    change();
  };
  const read = () => area.value.replace(/[[\](){}]/g, " ").split(/[\s,;]+/).filter(Boolean);

  function value() {
    const values = read().map(Number);
    const wanted = count();
    const odd = values.findIndex(Number.isNaN);
    if (odd >= 0) throw new Error(`${x.name}: “${read()[odd]}” is no number.`);
    const all = values.length === 1 ? new Array(wanted).fill(values[0]) : values;
    if (values.length && all.length !== wanted) throw new Error(`${x.name} has ${wanted} numbers, and ${all.length} are given.`);
    return { [x.name]: { data: arrayOf(x.dtype, all), shape: dims.shape(x.shape) } };
  }
  return { card, value, ready: () => read().length > 0, wants: `Give numbers for ${x.name} first.` };
}
