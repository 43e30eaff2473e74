//! PNG and JPEG images as bytes: rows, columns, channels.

use png::{ColorType, Transformations};
use std::io::Cursor;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Whether these are the first bytes of an image.
pub(super) fn is_image(bytes: &[u8]) -> bool {
    is_png(bytes) || bytes.starts_with(&[0xff, 0xd8, 0xff])
}

fn is_png(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x89PNG\r\n\x1a\n")
}

/// Why an image gives no values.
#[derive(Debug)]
pub(crate) enum Failed {
    /// It cannot be decoded.
    Damaged(String),
    /// It is whole and has other rows, columns or channels.
    Sizes([usize; 3]),
}

/// Decodes an image of these rows, columns and channels (1, 3 or 4) into `out`. Gray becomes color where color is asked for, and
/// transparency is left out where it is not. Of an image of other sizes nothing is unpacked, and no memory is taken for it.
pub(crate) fn decode(bytes: &[u8], sizes: [usize; 3], out: &mut Vec<u8>) -> Result<(), Failed> {
    if is_png(bytes) { decode_png(bytes, sizes, out) } else { decode_jpeg(bytes, sizes, out) }
}

fn damaged(e: &dyn std::fmt::Display) -> Failed {
    Failed::Damaged(e.to_string())
}

fn decode_png(bytes: &[u8], [rows, cols, channels]: [usize; 3], out: &mut Vec<u8>) -> Result<(), Failed> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(|e| damaged(&e))?;
    let found = match reader.output_color_type().0 {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb | ColorType::Indexed => 3,
        ColorType::Rgba => 4,
    };
    let info = reader.info();
    let has = [info.height as usize, info.width as usize, found];
    if [has[0], has[1]] != [rows, cols] || !goes(found, channels) {
        return Err(Failed::Sizes(has));
    }
    out.resize(rows * cols * channels, 0);
    if found == channels && reader.output_buffer_size() == Some(out.len()) {
        return reader.next_frame(out).map(drop).map_err(|e| damaged(&e));
    }
    let size = reader.output_buffer_size().ok_or_else(|| damaged(&"it is too large"))?;
    let mut all = vec![0; size];
    reader.next_frame(&mut all).map_err(|e| damaged(&e))?;
    spread(&all, found, out, channels);
    Ok(())
}

fn decode_jpeg(bytes: &[u8], [rows, cols, channels]: [usize; 3], out: &mut Vec<u8>) -> Result<(), Failed> {
    // Strict: a file that is cut off is an error, and not an image whose rest is gray.
    let options = DecoderOptions::default().set_strict_mode(true);
    // Even so the last bytes may be missing, as they often decide nothing.
    if !bytes.windows(2).rev().any(|b| b == [0xff, 0xd9]) {
        return Err(damaged(&"it is cut off: it has no end"));
    }
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|e| damaged(&format!("{e:?}")))?;
    let info = decoder.info().ok_or_else(|| damaged(&"it has no header"))?;
    let found = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => 1,
        _ => 3,
    };
    let has = [usize::from(info.height), usize::from(info.width), found];
    if [has[0], has[1]] != [rows, cols] || !goes(found, channels) {
        return Err(Failed::Sizes(has));
    }
    out.resize(rows * cols * channels, 0);
    let space = if found == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder.set_options(options.jpeg_set_out_colorspace(space));
    if found == channels {
        return decoder.decode_into(out).map_err(|e| damaged(&format!("{e:?}")));
    }
    let all = decoder.decode().map_err(|e| damaged(&format!("{e:?}")))?;
    spread(&all, found, out, channels);
    Ok(())
}

/// Whether pixels of `found` channels can be used where `asked` are asked for.
fn goes(found: usize, asked: usize) -> bool {
    matches!((found, asked), (1 | 2, 1) | (_, 3 | 4))
}

/// Pixels with another number of channels.
fn spread(from: &[u8], found: usize, out: &mut [u8], asked: usize) {
    for (from, to) in from.chunks_exact(found).zip(out.chunks_exact_mut(asked)) {
        let alpha = if found.is_multiple_of(2) { from[found - 1] } else { u8::MAX };
        let color = |k: usize| if found < 3 { from[0] } else { from[k] };
        for (k, to) in to.iter_mut().enumerate() {
            *to = if k == 3 { alpha } else { color(k) };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn png(cols: u32, rows: u32, color: ColorType, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, cols, rows);
        encoder.set_color(color);
        encoder.write_header().unwrap().write_image_data(data).unwrap();
        out
    }

    #[test]
    fn channels_are_what_is_asked_for() {
        let gray = png(3, 2, ColorType::Grayscale, &[1, 2, 3, 4, 5, 6]);
        let mut out = vec![];
        decode(&gray, [2, 3, 1], &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 4, 5, 6]);
        let mut out = vec![];
        decode(&gray, [2, 3, 3], &mut out).unwrap();
        assert_eq!(out[..7], [1, 1, 1, 2, 2, 2, 3]);
        let clear = png(1, 2, ColorType::Rgba, &[1, 2, 3, 40, 5, 6, 7, 80]);
        let mut out = vec![];
        decode(&clear, [2, 1, 3], &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 5, 6, 7]);
        let mut out = vec![];
        decode(&clear, [2, 1, 4], &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 40, 5, 6, 7, 80]);
        assert!(matches!(decode(&clear, [2, 1, 1], &mut vec![]), Err(Failed::Sizes([2, 1, 4]))));
        let mut out = vec![];
        assert!(matches!(decode(&gray, [60_000, 60_000, 4], &mut out), Err(Failed::Sizes([2, 3, 1]))));
        assert_eq!(out.capacity(), 0, "compared before memory is asked for");
        assert!(matches!(decode(&gray, [3, 2, 1], &mut vec![]), Err(Failed::Sizes([2, 3, 1]))));
    }

    #[test]
    fn a_jpeg_is_close_and_whole() {
        let data: Vec<u8> = (0..16 * 8).map(|i| (i * 2) as u8).collect();
        let mut bytes = Vec::new();
        let encoder = jpeg_encoder::Encoder::new(&mut bytes, 100);
        encoder.encode(&data, 16, 8, jpeg_encoder::ColorType::Luma).unwrap();
        let mut out = vec![];
        decode(&bytes, [8, 16, 1], &mut out).unwrap();
        assert!(out.iter().zip(&data).all(|(a, b)| a.abs_diff(*b) < 4), "{out:?}");
        let mut color = vec![];
        decode(&bytes, [8, 16, 3], &mut color).unwrap();
        assert!(color.chunks(3).zip(&out).all(|(c, g)| c == [*g; 3]));
        assert!(matches!(decode(&bytes, [16, 8, 1], &mut out), Err(Failed::Sizes([8, 16, 1]))));
        for n in 4..bytes.len() - 2 {
            assert!(decode(&bytes[..n], [8, 16, 1], &mut out).is_err(), "{n} of {}", bytes.len());
        }
    }

    #[test]
    fn no_flipped_bit_of_a_png_passes_unseen_or_panics() {
        let data: Vec<u8> = (0..48).collect();
        let good = png(4, 4, ColorType::Rgb, &data);
        let mut out = vec![];
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                if is_png(&bad) && decode(&bad, [4, 4, 3], &mut out).is_ok() {
                    assert_eq!(out, data, "byte {at}");
                }
            }
        }
    }
}
