//! Readers of files: what each format says of the elements in it, and the elements.

pub(super) mod array;
pub(super) mod bytes;
pub(super) mod csv_table;
pub(super) mod encoded_records;
pub(super) mod file_piece;
pub(super) mod folders;
pub(super) mod formats;
pub(super) mod idx;
pub(super) mod image;
pub(super) mod npy;
pub(super) mod npz;
pub(super) mod safetensor;
pub(super) mod shards;
pub(super) mod signed;
pub(crate) mod table_fault;
