/** How results look: the likeliest classes, one number, a table, a picture of values. */

const SHOWN = 5;
const VALUES = 64;
const TABLE = [24, 8]; // rows and columns, at most

const short = v => (Number.isInteger(v) ? String(v) : Math.abs(v) >= 1e4 || Math.abs(v) < 1e-3 ? v.toExponential(2) : v.toPrecision(4));

export function resultCard(name, { data, shape }, settings) {
  const card = document.createElement("div");
  card.className = "card";
  const head = card.appendChild(document.createElement("h2"));
  head.textContent = `${name} `;
  head.appendChild(document.createElement("small")).textContent = `[${shape.join(", ")}]`;
  const values = Float64Array.from(data, Number);
  const last = shape[shape.length - 1];
  if (values.length === 1) card.append(number(values[0]));
  else if (last === values.length && shape.length <= 2) card.append(classes(values, settings.labels));
  else if (shape.length > 1 && values.length <= TABLE[0] * last && last <= TABLE[1]) card.append(table(values, last, settings.labels));
  else card.append(...picture(values, shape));
  return card;
}

function number(value) {
  return Object.assign(document.createElement("p"), { className: "number", textContent: short(value) });
}

/** Values as shares of one, if they are not that already. */
function shares(values) {
  const sum = values.reduce((a, b) => a + b, 0);
  if (Math.abs(sum - 1) < 1e-3 && values.every(v => v >= 0)) return values;
  const most = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = values.map(v => Math.exp(v - most));
  const all = powers.reduce((a, b) => a + b, 0);
  return powers.map(v => v / all);
}

function classes(values, labels) {
  const list = document.createElement("ol");
  list.className = "classes";
  const likely = shares(values);
  const order = [...likely.keys()].sort((a, b) => likely[b] - likely[a]).slice(0, SHOWN);
  for (const k of order) {
    const item = list.appendChild(document.createElement("li"));
    item.innerHTML = "<div><b></b><output></output></div><div class=bar><div></div></div>";
    item.querySelector("b").textContent = labels?.[k] ?? `Class ${k}`;
    item.querySelector("output").textContent = `${(100 * likely[k]).toFixed(1)} %`;
    item.querySelector(".bar > div").style.width = `${100 * likely[k]}%`;
  }
  return list;
}

function table(values, columns, labels) {
  const box = Object.assign(document.createElement("div"), { className: "scroll" });
  const made = box.appendChild(document.createElement("table"));
  const named = labels?.length === columns;
  if (named) {
    const head = made.createTHead().insertRow();
    for (const name of labels) head.appendChild(document.createElement("th")).textContent = name;
  }
  const body = made.createTBody();
  for (let k = 0; k < values.length; k += columns) {
    const row = body.insertRow();
    for (const v of values.subarray(k, k + columns)) row.insertCell().textContent = short(v);
  }
  return box;
}

/** The last two axes as a picture (of channels before them, the first), and the first values. */
function picture(values, shape) {
  const [height, width] = shape.length > 1 ? shape.slice(-2) : [1, shape[0]];
  let [low, high, sum] = [Infinity, -Infinity, 0];
  for (const v of values) [low, high, sum] = [Math.min(low, v), Math.max(high, v), sum + v];
  const found = [];
  if (height > 1 && width > 1 && height * width <= 1 << 22) {
    const canvas = Object.assign(document.createElement("canvas"), { width, height, className: "map" });
    const pixels = new ImageData(width, height);
    for (let k = 0; k < width * height; k++) pixels.data.set(colour((values[k] - low) / (high - low || 1)), 4 * k);
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    found.push(canvas);
  }
  const text = document.createElement("p");
  text.className = "values";
  const some = Array.from(values.subarray(0, VALUES), short).join("  ");
  const more = values.length > VALUES ? ` … ${values.length - VALUES} more` : "";
  text.textContent = `least ${short(low)}, greatest ${short(high)}, mean ${short(sum / values.length)}\n${some}${more}`;
  return [...found, text];
}

/** From dark blue over green to yellow. */
function colour(share) {
  const stops = [[38, 32, 84], [44, 90, 142], [33, 145, 140], [110, 206, 88], [253, 231, 37]];
  const at = Math.max(0, Math.min(share, 1)) * (stops.length - 1);
  const k = Math.min(Math.floor(at), stops.length - 2);
  return [...stops[k].map((v, c) => v + (stops[k + 1][c] - v) * (at - k)), 255];
}
