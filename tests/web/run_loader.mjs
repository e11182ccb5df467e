/* Loads a package from disk with tilewright.js, and answers cases that come as JSON. */
import { readFile } from "node:fs/promises";
const { load } = await import(process.argv[2]);
const { package: folder, cases } = JSON.parse(process.argv[3]);

const KINDS = { f32: Float32Array, i64: BigInt64Array, i32: Int32Array };
const told = [];
const tensor = ({ dtype, data, shape }) => ({
  data: KINDS[dtype].from(data, dtype === "i64" ? BigInt : Number), shape,
});

/** A server of the folder, with files that a case replaces: `null` is missing, a number cuts it. */
const serve = changed => async url => {
  const file = url.replace("http://here/", "");
  const change = changed[file];
  if (change === null) return new Response("", { status: 404, statusText: "Not Found" });
  let bytes = typeof change === "string" ? Buffer.from(change) : await readFile(`${folder}/${file}`);
  if (typeof change === "number") bytes = change < 0 ? bytes.subarray(0, change) : Buffer.concat([bytes, Buffer.alloc(change)]);
  if (change?.flip !== undefined) bytes[change.flip] ^= 1;
  if (change?.edit) bytes = Buffer.from(JSON.stringify(Object.assign(JSON.parse(bytes), change.edit)));
  return new Response(bytes);
};

for (const { files = {}, inputs = {}, dims, options = {} } of cases) {
  try {
    let last;
    const model = await load("http://here/", { fetch: serve(files), onProgress: p => (last = p), ...options });
    const given = Object.fromEntries(Object.entries(inputs).map(([name, x]) => [name, x.dtype ? tensor(x) : x]));
    const results = await model.run(given, dims);
    for (const x of Object.values(results)) x.data = Array.from(x.data, Number);
    told.push({ results, level: model.level.target, loaded: last.loaded });
    model.close();
  } catch (wrong) {
    told.push({ wrong: wrong.message, code: wrong.code ?? wrong.stack });
  }
}
console.log(JSON.stringify(told));
