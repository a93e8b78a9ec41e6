//! An allocator that counts what the current thread asks for.
#![allow(unsafe_code, reason = "a global allocator can only be counted from within one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Bytes that `work` asked for, freed or not.
pub fn bytes_allocated<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = BYTES.get();
    let result = work();
    (result, BYTES.get() - before)
}

fn count(bytes: usize) {
    // Not there any more while a thread ends.
    let _ = BYTES.try_with(|total| total.set(total.get().saturating_add(bytes)));
}

// SAFETY: everything is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of the same method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_counter_counts() {
    let (kept, bytes) = bytes_allocated(|| vec![0u8; 1_000]);
    assert_eq!((kept.len(), bytes), (1_000, 1_000));
    assert_eq!(bytes_allocated(|| 1 + 1), (2, 0));
}
