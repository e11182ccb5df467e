//! Calls a package from Rust. The header's functions are compiled once, by a C compiler:
//!
//!     cc -O2 -c -x c -DTILEWRIGHT_IMPLEMENTATION tilewright.h -o tilewright.o
//!     ar rcs libtilewright.a tilewright.o
//!     rustc -O examples/rust/classify.rs -L . -l static=tilewright
//!     ./classify classifier.twp 3

use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};
use std::ptr;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    dtype: c_int,
    rank: c_int,
    shape: *const i64,
}

#[repr(C)]
struct Opened {
    _private: [u8; 0],
}

const F32: c_int = 2;
const VERIFY_WEIGHTS: c_uint = 1;

extern "C" {
    fn tw_open(path: *const c_char, flags: c_uint, package: *mut *mut Opened) -> c_int;
    fn tw_close(package: *mut Opened);
    fn tw_output_shape(
        package: *const Opened,
        inputs: *const Tensor,
        input_count: usize,
        output: usize,
        shape: *mut i64,
    ) -> c_int;
    fn tw_run(
        package: *mut Opened,
        inputs: *const Tensor,
        input_count: usize,
        outputs: *const Tensor,
        output_count: usize,
        workspace: *mut c_void,
    ) -> c_int;
    fn tw_error_text() -> *const c_char;
}

/// A package; calls may come from several threads at once.
struct Package(*mut Opened);

unsafe impl Send for Package {}
unsafe impl Sync for Package {}

fn checked(code: c_int) -> Result<(), String> {
    if code == 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(tw_error_text()) }.to_string_lossy().into_owned())
}

impl Package {
    fn open(path: &str) -> Result<Package, String> {
        let path = CString::new(path).map_err(|_| "a path has no zero in it".to_string())?;
        let mut opened = ptr::null_mut();
        checked(unsafe { tw_open(path.as_ptr(), VERIFY_WEIGHTS, &mut opened) })?;
        Ok(Package(opened))
    }

    /// Rows of floats in, rows of floats out.
    fn run(&self, x: &[f32], rows: usize) -> Result<Vec<f32>, String> {
        let shape = [rows as i64, (x.len() / rows) as i64];
        let input = Tensor { data: x.as_ptr() as *mut c_void, dtype: F32, rank: 2, shape: shape.as_ptr() };
        let mut size = [0i64; 16];
        checked(unsafe { tw_output_shape(self.0, &input, 1, 0, size.as_mut_ptr()) })?;
        let mut y = vec![0f32; (size[0] * size[1]) as usize];
        let output = Tensor {
            data: y.as_mut_ptr() as *mut c_void,
            dtype: F32,
            rank: 2,
            shape: size.as_ptr(),
        };
        checked(unsafe { tw_run(self.0, &input, 1, &output, 1, ptr::null_mut()) })?;
        Ok(y)
    }
}

impl Drop for Package {
    fn drop(&mut self) {
        unsafe { tw_close(self.0) }
    }
}

fn classify() -> Result<(), String> {
    let words: Vec<String> = std::env::args().collect();
    let path = words.get(1).ok_or("classify PACKAGE [ROWS]")?;
    let rows: usize = words.get(2).map_or(Ok(1), |n| n.parse()).map_err(|_| "ROWS is a number")?;
    let package = Package::open(path)?;
    let x: Vec<f32> = (0..rows * 16).map(|k| (k % 7) as f32 - 3.0).collect();
    for row in package.run(&x, rows)?.chunks(4) {
        let shown: Vec<String> = row.iter().map(|y| format!("{y:.6}")).collect();
        println!("{}", shown.join(" "));
    }
    Ok(())
}

fn main() {
    if let Err(problem) = classify() {
        eprintln!("{problem}");
        std::process::exit(1);
    }
}
