//! A thin layer over the C interface: return codes become errors, handles become types. The safe interface of the `mpi`
//! crate is not used, since it ties each request to a scope, which the two halves of a collective do not share.
//!
//! Every function here is called by one thread at a time (`crate::shared_engine`), so that `MPI_THREAD_SERIALIZED` suffices.
#![expect(unsafe_code, reason = "calls of a C library")]

use mpi::ffi;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// What the library says is wrong.
pub(super) type Result<T> = std::result::Result<T, String>;

/// A group of processes with its own messages.
#[derive(Clone, Copy)]
pub(super) struct Comm(ffi::MPI_Comm);

/// A type of elements.
#[derive(Clone, Copy)]
pub(super) struct Type(ffi::MPI_Datatype);

/// How elements are folded.
#[derive(Clone, Copy)]
pub(super) struct ReduceOp(ffi::MPI_Op);

/// Operations under way, which end together. Dropping it leaves them under way.
pub(super) struct Requests(Vec<ffi::MPI_Request>);

// SAFETY: handles are numbers or addresses that the library interprets; any thread may use them.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Send for Type {}
// SAFETY: as above.
unsafe impl Send for ReduceOp {}
// SAFETY: as above.
unsafe impl Send for Requests {}

/// A message that can be received.
pub(super) struct Probed {
    pub(super) source: usize,
    pub(super) bytes: usize,
    pub(super) tag: i32,
}

fn check(code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0 as c_char; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut len = 0;
    // SAFETY: there is room for the longest text and its end.
    let known = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr(), &mut len) };
    if known != ffi::MPI_SUCCESS as c_int {
        return Err(format!("MPI error {code}"));
    }
    text[text.len() - 1] = 0;
    // SAFETY: the last byte is 0.
    Err(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

fn int(n: usize) -> Result<c_int> {
    c_int::try_from(n).map_err(|_| format!("{n} is more than MPI counts to"))
}

/// An address as the library takes it. Those of empty memory may be small numbers, which are marks of the library (Open
/// MPI's "in place" is 1).
fn address(of: *const u8) -> *const c_void {
    static NOWHERE: u64 = 0;
    let small = (of as usize) < 4096;
    if small { std::ptr::from_ref(&NOWHERE).cast() } else { of.cast() }
}

/// As [`address`]; what is empty is not written to.
fn address_mut(of: *mut u8) -> *mut c_void {
    address(of).cast_mut()
}

/// Starts the library; once in a process.
pub(super) fn init() -> Result<()> {
    let mut started = 0;
    // SAFETY: may be called at any time.
    check(unsafe { ffi::MPI_Initialized(&mut started) })?;
    if started != 0 {
        return Err("MPI has been started in this process before".into());
    }
    let mut level = 0;
    // SAFETY: MPI is not started yet; no arguments are passed on.
    check(unsafe { ffi::MPI_Init_thread(null_mut(), null_mut(), ffi::RSMPI_THREAD_SERIALIZED, &mut level) })?;
    // SAFETY: a constant.
    if level < unsafe { ffi::RSMPI_THREAD_SERIALIZED } {
        return Err("this MPI library was built for one thread, and Meshwright calls it from several".into());
    }
    Ok(())
}

/// Name and version of the library.
pub(super) fn version() -> String {
    // SAFETY: a constant.
    let most = unsafe { ffi::RSMPI_MAX_LIBRARY_VERSION_STRING };
    let mut text = vec![0u8; usize::try_from(most).unwrap_or(8192) + 1];
    let mut len = 0;
    // SAFETY: there is room for the longest text and its end.
    if check(unsafe { ffi::MPI_Get_library_version(text.as_mut_ptr().cast(), &mut len) }).is_err() {
        return String::new();
    }
    text.truncate(usize::try_from(len).unwrap_or(0));
    String::from_utf8_lossy(&text).trim_end_matches('\0').trim_end().to_string()
}

/// Whether the library has been ended, or was never started.
pub(super) fn is_over() -> bool {
    let (mut started, mut ended) = (0, 0);
    // SAFETY: may be called at any time.
    unsafe {
        let known = ffi::MPI_Initialized(&mut started) == 0 && ffi::MPI_Finalized(&mut ended) == 0;
        !known || started == 0 || ended != 0
    }
}

/// Ends the library; collective.
pub(super) fn finalize() -> Result<()> {
    // SAFETY: called once, by the last user.
    check(unsafe { ffi::MPI_Finalize() })
}

/// Ends all processes of the job. Usually does not return.
pub(super) fn abort(code: i32) {
    // SAFETY: may be called between start and end, by any thread.
    let _ended = check(unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code) });
}

impl Comm {
    /// All processes.
    pub(super) fn world() -> Comm {
        // SAFETY: a constant.
        Comm(unsafe { ffi::RSMPI_COMM_WORLD })
    }

    fn null() -> Comm {
        // SAFETY: a constant.
        Comm(unsafe { ffi::RSMPI_COMM_NULL })
    }

    pub(super) fn rank(self) -> Result<usize> {
        let mut rank = 0;
        // SAFETY: a valid handle.
        check(unsafe { ffi::MPI_Comm_rank(self.0, &mut rank) })?;
        usize::try_from(rank).map_err(|e| e.to_string())
    }

    pub(super) fn size(self) -> Result<usize> {
        let mut size = 0;
        // SAFETY: a valid handle.
        check(unsafe { ffi::MPI_Comm_size(self.0, &mut size) })?;
        usize::try_from(size).map_err(|e| e.to_string())
    }

    /// Errors become return codes instead of ending the process.
    pub(super) fn errors_return(self) -> Result<Comm> {
        // SAFETY: a valid handle, and a constant.
        check(unsafe { ffi::MPI_Comm_set_errhandler(self.0, ffi::RSMPI_ERRORS_RETURN) })?;
        Ok(self)
    }

    /// The same processes with messages of their own; collective.
    pub(super) fn duplicate(self) -> Result<Comm> {
        let mut new = Comm::null();
        // SAFETY: a valid handle.
        check(unsafe { ffi::MPI_Comm_dup(self.0, &mut new.0) })?;
        new.errors_return()
    }

    /// Those processes that share memory with this one; collective.
    pub(super) fn of_this_node(self) -> Result<Comm> {
        let mut new = Comm::null();
        // SAFETY: a valid handle, and constants.
        check(unsafe {
            ffi::MPI_Comm_split_type(self.0, ffi::RSMPI_COMM_TYPE_SHARED, 0, ffi::RSMPI_INFO_NULL, &mut new.0)
        })?;
        new.errors_return()
    }

    /// The processes of those ranks, in that order. It returns when all of them have called it.
    pub(super) fn of_ranks(self, ranks: &[usize]) -> Result<Comm> {
        let ranks = ranks.iter().map(|r| int(*r)).collect::<Result<Vec<_>>>()?;
        // SAFETY: constants.
        let (mut all, mut some) = unsafe { (ffi::RSMPI_GROUP_NULL, ffi::RSMPI_GROUP_NULL) };
        let mut new = Comm::null();
        // SAFETY: valid handles; `ranks` has as many elements as are said.
        unsafe {
            check(ffi::MPI_Comm_group(self.0, &mut all))?;
            check(ffi::MPI_Group_incl(all, int(ranks.len())?, ranks.as_ptr(), &mut some))?;
            check(ffi::MPI_Comm_create_group(self.0, some, 0, &mut new.0))?;
            check(ffi::MPI_Group_free(&mut some))?;
            check(ffi::MPI_Group_free(&mut all))?;
        }
        new.errors_return()
    }

    /// A message from anybody that can be received.
    pub(super) fn probe(self) -> Result<Option<Probed>> {
        let mut found = 0;
        // SAFETY: a status is plain numbers.
        let mut status: ffi::MPI_Status = unsafe { std::mem::zeroed() };
        // SAFETY: a valid handle, and constants.
        check(unsafe {
            ffi::MPI_Iprobe(ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG, self.0, &mut found, &mut status)
        })?;
        if found == 0 {
            return Ok(None);
        }
        let mut bytes = 0;
        // SAFETY: the status of a message.
        check(unsafe { ffi::MPI_Get_count(&status, Type::bytes(1)?.0, &mut bytes) })?;
        let usize_of = |n: c_int| usize::try_from(n).map_err(|e| e.to_string());
        Ok(Some(Probed {
            source: usize_of(status.MPI_SOURCE)?,
            bytes: usize_of(bytes)?,
            tag: status.MPI_TAG,
        }))
    }
}

impl Type {
    /// Opaque elements of 1, 2, 4, 8 or 16 bytes.
    pub(super) fn bytes(size: usize) -> Result<Type> {
        // SAFETY: constants.
        unsafe {
            match size {
                1 => Ok(Type(ffi::RSMPI_UINT8_T)),
                2 => Ok(Type(ffi::RSMPI_UINT16_T)),
                4 => Ok(Type(ffi::RSMPI_UINT32_T)),
                8 => Ok(Type(ffi::RSMPI_UINT64_T)),
                _ => Type::several(size / 8),
            }
        }
    }

    /// An element of several words of 8 bytes.
    fn several(words: usize) -> Result<Type> {
        // SAFETY: constants, and a new type that is never freed: one of it is made in a process.
        unsafe {
            let mut new = ffi::RSMPI_DATATYPE_NULL;
            check(ffi::MPI_Type_contiguous(int(words)?, ffi::RSMPI_UINT64_T, &mut new))?;
            check(ffi::MPI_Type_commit(&mut new))?;
            Ok(Type(new))
        }
    }

    /// Floats of 8 or 4 bytes.
    pub(super) fn float(size: usize) -> Type {
        // SAFETY: constants.
        unsafe { if size == 8 { Type(ffi::RSMPI_DOUBLE) } else { Type(ffi::RSMPI_FLOAT) } }
    }

    /// Signed numbers of 4 bytes.
    pub(super) fn i32() -> Type {
        // SAFETY: a constant.
        Type(unsafe { ffi::RSMPI_INT32_T })
    }
}

impl ReduceOp {
    pub(super) fn sum() -> ReduceOp {
        // SAFETY: a constant.
        ReduceOp(unsafe { ffi::RSMPI_SUM })
    }

    pub(super) fn product() -> ReduceOp {
        // SAFETY: a constant.
        ReduceOp(unsafe { ffi::RSMPI_PROD })
    }

    pub(super) fn max() -> ReduceOp {
        // SAFETY: a constant.
        ReduceOp(unsafe { ffi::RSMPI_MAX })
    }

    pub(super) fn min() -> ReduceOp {
        // SAFETY: a constant.
        ReduceOp(unsafe { ffi::RSMPI_MIN })
    }

    /// A commutative fold of our own. The operation is never freed: there are a few in a process.
    pub(super) fn new(
        fold: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut ffi::MPI_Datatype),
    ) -> Result<ReduceOp> {
        // SAFETY: a constant.
        let mut new = unsafe { ffi::RSMPI_MAX };
        // SAFETY: the function has the signature that the library asks for.
        check(unsafe { ffi::MPI_Op_create(Some(fold), 1, &mut new) })?;
        Ok(ReduceOp(new))
    }
}

impl Requests {
    pub(super) fn new() -> Requests {
        Requests(Vec::new())
    }

    /// Whether all have ended.
    pub(super) fn test(&mut self) -> Result<bool> {
        if self.0.is_empty() {
            return Ok(true);
        }
        let mut ended = 0;
        // SAFETY: as many requests as are said; the memory they work on is valid by the promise of those who started them.
        check(unsafe {
            ffi::MPI_Testall(int(self.0.len())?, self.0.as_mut_ptr(), &mut ended, ffi::RSMPI_STATUSES_IGNORE)
        })?;
        if ended != 0 {
            self.0.clear();
        }
        Ok(ended != 0)
    }

    fn add(&mut self, start: impl FnOnce(*mut ffi::MPI_Request) -> c_int) -> Result<()> {
        // SAFETY: a constant.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        check(start(&mut request))?;
        self.0.push(request);
        Ok(())
    }

    // Of the functions below: memory stays valid, and (where it is sent) is not written to by others, or (where it is
    // received into) is not touched by others, until the requests have ended or the library is not called any more.

    /// # Safety
    /// `from` has `count` elements; see above.
    pub(super) unsafe fn send(
        &mut self,
        comm: Comm,
        (from, count, of): (*const u8, usize, Type),
        to: usize,
        tag: i32,
    ) -> Result<()> {
        let (count, to) = (int(count)?, int(to)?);
        // SAFETY: the caller's promise.
        self.add(|r| unsafe { ffi::MPI_Isend(address(from), count, of.0, to, tag, comm.0, r) })
    }

    /// # Safety
    /// `to` has `count` elements; see above.
    pub(super) unsafe fn receive(
        &mut self,
        comm: Comm,
        (to, count, of): (*mut u8, usize, Type),
        from: usize,
        tag: i32,
    ) -> Result<()> {
        let (count, from) = (int(count)?, int(from)?);
        // SAFETY: the caller's promise.
        self.add(|r| unsafe { ffi::MPI_Irecv(address_mut(to), count, of.0, from, tag, comm.0, r) })
    }

    /// # Safety
    /// `from` and `to` have `count` elements, and do not overlap; see above.
    pub(super) unsafe fn all_reduce(
        &mut self,
        comm: Comm,
        (from, to, count): (*const u8, *mut u8, usize),
        of: Type,
        fold: ReduceOp,
    ) -> Result<()> {
        let count = int(count)?;
        // SAFETY: the caller's promise.
        self.add(|r| unsafe {
            ffi::MPI_Iallreduce(address(from), address_mut(to), count, of.0, fold.0, comm.0, r)
        })
    }

    /// # Safety
    /// `from` has `count` elements, and on the root `to` has as many; see above.
    pub(super) unsafe fn reduce(
        &mut self,
        comm: Comm,
        (from, to, count): (*const u8, *mut u8, usize),
        (of, fold): (Type, ReduceOp),
        root: usize,
    ) -> Result<()> {
        let (count, root) = (int(count)?, int(root)?);
        // SAFETY: the caller's promise.
        self.add(|r| unsafe {
            ffi::MPI_Ireduce(address(from), address_mut(to), count, of.0, fold.0, root, comm.0, r)
        })
    }

    /// # Safety
    /// `counts` has an element for each member, `from` as many elements as their sum, `to` those of this member; all
    /// three, see above.
    pub(super) unsafe fn reduce_scatter(
        &mut self,
        comm: Comm,
        (from, to, counts): (*const u8, *mut u8, &[c_int]),
        (of, fold): (Type, ReduceOp),
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        self.add(|r| unsafe {
            ffi::MPI_Ireduce_scatter(address(from), address_mut(to), counts.as_ptr(), of.0, fold.0, comm.0, r)
        })
    }

    /// # Safety
    /// `from` has `count` elements; `counts` and `starts` have an element for each member, and `to` the pieces that they
    /// describe; all four, see above.
    pub(super) unsafe fn all_gather(
        &mut self,
        comm: Comm,
        (from, count): (*const u8, usize),
        (to, counts, starts): (*mut u8, &[c_int], &[c_int]),
        of: Type,
    ) -> Result<()> {
        let count = int(count)?;
        // SAFETY: the caller's promise.
        self.add(|r| unsafe {
            let (counts, starts) = (counts.as_ptr(), starts.as_ptr());
            ffi::MPI_Iallgatherv(address(from), count, of.0, address_mut(to), counts, starts, of.0, comm.0, r)
        })
    }

    /// # Safety
    /// `buffer` has `count` elements; see above.
    pub(super) unsafe fn broadcast(
        &mut self,
        comm: Comm,
        (buffer, count, of): (*mut u8, usize, Type),
        root: usize,
    ) -> Result<()> {
        let (count, root) = (int(count)?, int(root)?);
        // SAFETY: the caller's promise.
        self.add(|r| unsafe { ffi::MPI_Ibcast(address_mut(buffer), count, of.0, root, comm.0, r) })
    }

    pub(super) fn barrier(&mut self, comm: Comm) -> Result<()> {
        // SAFETY: no memory is touched.
        self.add(|r| unsafe { ffi::MPI_Ibarrier(comm.0, r) })
    }
}

/// What a fold of our own is called with: the operands, of which the second takes the result, and their number.
///
/// # Safety
/// Only for what the library passes to such a fold.
pub(super) unsafe fn operands(
    a: *mut c_void,
    b: *mut c_void,
    len: *mut c_int,
) -> (*const u8, *mut u8, usize) {
    let len = if len.is_null() { null() } else { len.cast_const() };
    // SAFETY: the caller's promise.
    let n = unsafe { len.as_ref() }.map_or(0, |n| usize::try_from(*n).unwrap_or(0));
    (a.cast_const().cast(), b.cast(), n)
}
