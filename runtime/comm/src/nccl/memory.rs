//! Memory of a GPU that the transport itself allocates: for benchmarks, tests, and host data that goes by NCCL.

use super::stream::Inner;
use crate::{Buf, BufMut, CommError, TransportMemory};
use meshwright_plan::DType;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Elements in the memory of a GPU. It is freed when all collectives that were posted have ended.
pub struct DeviceMemory {
    inner: Arc<Inner>,
    address: u64,
    len: usize,
    dtype: DType,
    /// Whether a collective may have been given it.
    lent: AtomicBool,
}

impl DeviceMemory {
    pub(super) fn new(inner: Arc<Inner>, len: usize, dtype: DType) -> Result<Self, CommError> {
        let bytes = (len * dtype.bytes()).max(1);
        let address = inner.gpu.bind().and_then(|()| inner.gpu.allocate(bytes));
        let address = address
            .map_err(|e| inner.refused(None, format!("{bytes} bytes on GPU {}: {e}", inner.gpu.ordinal)))?;
        Ok(DeviceMemory { inner, address, len, dtype, lent: AtomicBool::new(false) })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first element.
    pub fn address(&self) -> u64 {
        self.lent.store(true, Ordering::Relaxed);
        self.address
    }

    /// The elements, for a collective of whose memory the caller takes care.
    pub(super) fn input(&self) -> Buf<'static> {
        #[expect(unsafe_code, reason = "an address of ours")]
        // SAFETY: memory of this GPU with that many elements; it is freed, and copied to, only when nothing is in flight.
        unsafe {
            Buf::device(self.address(), self.len, self.dtype, self.inner.gpu.ordinal)
        }
    }

    /// As [`DeviceMemory::input`], for a collective to write.
    pub(super) fn result(&self) -> BufMut<'static> {
        #[expect(unsafe_code, reason = "an address of ours")]
        // SAFETY: as there; callers give it to one collective at a time.
        unsafe {
            BufMut::device(self.address(), self.len, self.dtype, self.inner.gpu.ordinal)
        }
    }

    fn check(&self, bytes: usize) -> Result<(), CommError> {
        match self.len * self.dtype.bytes() {
            room if room == bytes => Ok(()),
            room => {
                Err(self.inner.refused(None, format!("a copy of {bytes} bytes and memory of {room} bytes")))
            }
        }
    }
}

impl TransportMemory for DeviceMemory {
    fn buf(&self) -> Buf<'_> {
        self.input()
    }

    fn buf_mut(&mut self) -> BufMut<'_> {
        self.result()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CommError> {
        self.check(bytes.len())?;
        if self.lent.load(Ordering::Relaxed) {
            self.inner.wait(None, None)?;
        }
        #[expect(unsafe_code, reason = "a copy to memory of ours")]
        // SAFETY: nothing is in flight, and the lengths are equal.
        let copied =
            self.inner.gpu.bind().and_then(|()| unsafe { self.inner.gpu.upload(bytes, self.address) });
        copied.map_err(|e| self.inner.refused(None, e))
    }

    fn read(&self, bytes: &mut [u8]) -> Result<(), CommError> {
        self.check(bytes.len())?;
        self.inner.wait(None, None)?;
        #[expect(unsafe_code, reason = "a copy from memory of ours")]
        // SAFETY: nothing is in flight, and the lengths are equal.
        let copied =
            self.inner.gpu.bind().and_then(|()| unsafe { self.inner.gpu.download(self.address, bytes) });
        copied.map_err(|e| self.inner.refused(None, e))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // Ends within the timeout. After a failure the communicators are aborted, so that nothing runs any more.
        if self.lent.load(Ordering::Relaxed) {
            let _ = self.inner.wait(None, None);
        }
        let _ = self.inner.gpu.bind();
        #[expect(unsafe_code, reason = "frees memory of ours")]
        // SAFETY: nothing is in flight.
        unsafe {
            self.inner.gpu.free(self.address);
        }
    }
}
