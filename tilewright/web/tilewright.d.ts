/** Runs packages of Tilewright (`tw.export`, `tilewright export`) in a browser. */

export type TypedArray =
  | Float32Array | Float64Array | Int8Array | Int16Array | Int32Array | BigInt64Array
  | Uint8Array | Uint8ClampedArray | Uint16Array | Uint32Array | BigUint64Array;

/** An input or an output. A size is a number, or an expression over the names in `dims` and, where
 * data decides it, in the manifest's `counted`. */
export interface Description {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly (number | string)[];
}

export interface Tensor {
  readonly data: TypedArray;
  readonly shape: readonly number[];
}

export interface Progress {
  readonly file: string;
  /** Bytes of the weights that have arrived, and of all of them. */
  readonly loaded: number;
  readonly total: number;
}

export interface Options {
  /** How many threads, this one included: as many as cores, up to 4, if not said. There is one
   * where the page is not isolated from others (`crossOriginIsolated`) or the package has no code
   * for several. */
  threads?: number;
  onProgress?: (progress: Progress) => void;
  /** Compare the checksum of the weights too; that of the code always is, where the page has
   * `crypto.subtle`. */
  verifyWeights?: boolean;
  /** Reads files instead of the page's own `fetch`. */
  fetch?: typeof fetch;
}

export declare class Model {
  readonly name: string;
  readonly inputs: readonly Description[];
  readonly outputs: readonly Description[];
  /** The least and the greatest value of each size that a call chooses; null: any. */
  readonly dims: Readonly<Record<string, readonly [number, number | null]>>;
  /** The code that was taken: `level.target` is its name. */
  readonly level: { readonly target: string; readonly file: string; readonly bytes: number };
  readonly manifest: unknown;
  readonly threads: number;
  /** What the last call took inside the code. */
  readonly milliseconds: number;
  /**
   * Computes the outputs, in this thread and its workers. Inputs are arrays by name, row-major; with
   * `{data, shape}` sizes are known, otherwise `dims` has them.
   */
  run(
    inputs: Readonly<Record<string, TypedArray | Tensor>>,
    dims?: Readonly<Record<string, number>>,
  ): Promise<Record<string, Tensor>>;
  /** Ends the workers, and lets memory go. */
  close(): void;
}

/** What cannot be done, in a sentence. `code` is the name of an error code of the C interface. */
export declare class TilewrightError extends Error {
  readonly code: string;
}

/** Loads the package in a folder of the web: its manifest, the best code for this engine, weights. */
export declare function load(url: string | URL, options?: Options): Promise<Model>;
