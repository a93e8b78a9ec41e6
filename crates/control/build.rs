//! A new migration file alone would not rebuild the crate that embeds it.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
