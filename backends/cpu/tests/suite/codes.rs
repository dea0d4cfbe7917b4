//! Integer codes of `quantize` and `dequantize` against a straightforward computation, for every kernel: all widths, both signs, zero
//! points of any size, and blocks that start inside a byte.

use lz_core::{KernelEntry, Tensor};
use lz_engine::Engine;
use lz_ops::{
    Dequantize, DequantizeFormat, DequantizeGranularity, Quantize, QuantizeFormat, QuantizeGranularity,
    dequantize, quantize, reference_kernels,
};
use proptest::prelude::*;

/// An integer format: its width and the range of its codes.
#[derive(Debug, Clone, Copy)]
struct Integers {
    quantize: QuantizeFormat,
    dequantize: DequantizeFormat,
    bits: usize,
    lowest: i64,
    highest: i64,
}

const FORMATS: [Integers; 8] = [
    Integers {
        quantize: QuantizeFormat::Int8,
        dequantize: DequantizeFormat::Int8,
        bits: 8,
        lowest: -128,
        highest: 127,
    },
    Integers {
        quantize: QuantizeFormat::Uint8,
        dequantize: DequantizeFormat::Uint8,
        bits: 8,
        lowest: 0,
        highest: 255,
    },
    Integers {
        quantize: QuantizeFormat::Int4,
        dequantize: DequantizeFormat::Int4,
        bits: 4,
        lowest: -8,
        highest: 7,
    },
    Integers {
        quantize: QuantizeFormat::Uint4,
        dequantize: DequantizeFormat::Uint4,
        bits: 4,
        lowest: 0,
        highest: 15,
    },
    Integers {
        quantize: QuantizeFormat::Int16,
        dequantize: DequantizeFormat::Int16,
        bits: 16,
        lowest: -32768,
        highest: 32767,
    },
    Integers {
        quantize: QuantizeFormat::Uint16,
        dequantize: DequantizeFormat::Uint16,
        bits: 16,
        lowest: 0,
        highest: 65535,
    },
    Integers {
        quantize: QuantizeFormat::Int2,
        dequantize: DequantizeFormat::Int2,
        bits: 2,
        lowest: -2,
        highest: 1,
    },
    Integers {
        quantize: QuantizeFormat::Uint2,
        dequantize: DequantizeFormat::Uint2,
        bits: 2,
        lowest: 0,
        highest: 3,
    },
];

impl Integers {
    /// Rows of codes in the bytes that the operation stores: each row starts at a byte, the first code in the lowest bits.
    fn stored(self, codes: &[i64], inner: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for row in codes.chunks(inner) {
            let mut word = 0u128;
            for part in row.chunks(128 / self.bits) {
                for (place, &code) in part.iter().enumerate() {
                    word |= (code as u128 & ((1 << self.bits) - 1)) << (place * self.bits);
                }
                bytes.extend(&word.to_le_bytes()[..(part.len() * self.bits).div_ceil(8)]);
                word = 0;
            }
        }
        bytes
    }
}

/// A case: values, and a scale and a zero point for each block of each row.
#[derive(Debug)]
struct Case {
    format: Integers,
    x: Vec<f32>,
    codes: Vec<i64>,
    inner: usize,
    block: usize,
    scales: Vec<f32>,
    zero_points: Vec<i32>,
}

impl Case {
    fn blocks(&self) -> usize {
        self.inner.div_ceil(self.block)
    }

    fn group(&self, element: usize) -> usize {
        element / self.inner * self.blocks() + element % self.inner / self.block
    }

    fn quantized(&self) -> Vec<i64> {
        let code = |(element, &x): (usize, &f32)| {
            let group = self.group(element);
            let ratio = x / self.scales[group];
            let whole = if ratio.is_nan() { 0.0 } else { f64::from(ratio).round_ties_even() };
            let sum = whole + f64::from(self.zero_points[group]);
            sum.clamp(self.format.lowest as f64, self.format.highest as f64) as i64
        };
        self.x.iter().enumerate().map(code).collect()
    }

    fn dequantized(&self) -> Vec<f32> {
        let value = |(element, &code): (usize, &i64)| {
            let group = self.group(element);
            (code - i64::from(self.zero_points[group])) as f32 * self.scales[group]
        };
        self.codes.iter().enumerate().map(value).collect()
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let value = prop_oneof![
        8 => -200.0f32..400.0,
        2 => (-600i32..600).prop_map(|half| half as f32 / 2.0),
        1 => prop_oneof![
            Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(3e38), Just(-3e38), Just(-0.0)
        ],
    ];
    let zero_point =
        prop_oneof![6 => -20i32..300, 1 => any::<i32>(), 1 => Just(i32::MIN), 1 => Just(1 << 24)];
    let scale = prop_oneof![3 => 0.01f32..3.0, 1 => Just(1.0), 1 => Just(f32::from_bits(1))];
    (0..FORMATS.len(), 1usize..4, 1usize..70, 1usize..40).prop_flat_map(
        move |(format, rows, inner, block)| {
            let format = FORMATS[format];
            let groups = rows * inner.div_ceil(block);
            (
                prop::collection::vec(value.clone(), rows * inner),
                prop::collection::vec(format.lowest..=format.highest, rows * inner),
                prop::collection::vec(scale.clone(), groups),
                prop::collection::vec(zero_point.clone(), groups),
            )
                .prop_map(move |(x, codes, scales, zero_points)| Case {
                    format,
                    x,
                    codes,
                    inner,
                    block,
                    scales,
                    zero_points,
                })
        },
    )
}

/// An engine for each kernel of an operation.
fn engines(operation: &str) -> Vec<(String, Engine)> {
    let all = reference_kernels::kernels().into_iter().chain(lz_cpu::kernels());
    let only = |entry: KernelEntry| (entry.spec.id.clone(), Engine::with_kernels([entry]).unwrap());
    all.filter(|entry| entry.spec.operation == operation).map(only).collect()
}

fn stored_tensor(case: &Case) -> Tensor {
    let rows = (case.x.len() / case.inner) as i64;
    let bytes = case.format.stored(&case.codes, case.inner);
    let dtype = match case.format.quantize {
        QuantizeFormat::Int8 => lz_core::DType::I8,
        QuantizeFormat::Int16 => lz_core::DType::I16,
        QuantizeFormat::Uint16 => lz_core::DType::U16,
        _ => lz_core::DType::U8,
    };
    let columns = bytes.len() as i64 / rows / dtype.size() as i64;
    let mut stored = Tensor::zeros(&[rows, columns], dtype).unwrap();
    stored.bytes_mut().copy_from_slice(&bytes);
    stored
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn codes_of_every_kernel_are_the_defined_ones(case in cases()) {
        let (rows, inner) = ((case.x.len() / case.inner) as i64, case.inner as i64);
        let x = Tensor::from_slice(&case.x, &[rows, inner]).unwrap();
        let groups = [rows, case.blocks() as i64];
        let scale = Tensor::from_slice(&case.scales, &groups).unwrap();
        let zero_point = Tensor::from_slice(&case.zero_points, &groups).unwrap();
        let expected = case.format.stored(&case.quantized(), case.inner);
        for (kernel, engine) in engines("quantize") {
            let call = Quantize::new(x.view(), case.format.quantize, QuantizeGranularity::Block)
                .block_size(case.block as i64)
                .scale(scale.view())
                .zero_point(zero_point.view());
            let found = quantize(&engine, call).unwrap().quantized;
            prop_assert_eq!(found.bytes(), &expected, "{}", kernel);
        }
        let (stored, expected) = (stored_tensor(&case), case.dequantized());
        for (kernel, engine) in engines("dequantize") {
            let call =
                Dequantize::new(stored.view(), scale.view(), case.format.dequantize, DequantizeGranularity::Block)
                    .block_size(case.block as i64)
                    .inner(inner)
                    .zero_point(zero_point.view());
            let output = dequantize(&engine, call).unwrap().output;
            let found = output.view().as_slice::<f32>().unwrap().to_vec();
            prop_assert_eq!(&found, &expected, "{}", kernel);
        }
    }
}
