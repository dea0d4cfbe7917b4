//! A short tour, run by `cargo xtask run`: three operations through selection, what was chosen and why, and a wrong call.

use std::error::Error;

use layerzero::core::device::Platform;
use layerzero::core::{Context, DType, KernelError, KernelSpec, OperationInfo, ReasonCode, Run, TensorView};
use layerzero::engine::Engine;
use layerzero::ops::{
    ATTENTION_GQA_PREFILL, AttentionGqaPrefill, NORM_RMS, NormRms, NormRmsCall, NormRmsKernel, NormRmsOut,
    OPERATIONS, SAMPLING_TOPP, SamplingTopp, attention_gqa_prefill, norm_rms, norm_rms_kernel,
    reference_engine, sampling_topp,
};

fn main() -> Result<(), Box<dyn Error>> {
    let engine = reference_engine();
    let spec = KernelSpec::new("tour.norm.rms", "norm.rms", "tour", "1", Platform::Cpu)
        .dtype("T", &[DType::F32])
        .limit("not given(weight)", ReasonCode::OptionalInputUnsupported)
        .priority(50);
    engine.register([norm_rms_kernel(spec, DenseRows)])?;
    println!("LayerZero knows {} operations; each has a reference on this machine.", OPERATIONS.len());

    println!("\n1. norm.rms: a backend of this tour brings a kernel of its own, for calls without a weight");
    let x = [3.0f32, 4.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0];
    let args = NormRms::new(TensorView::from_slice(&x, &[2, 4])?);
    show_choice(&engine, &NORM_RMS, &args.check()?.context())?;
    let result = norm_rms(&engine, args)?;
    println!("   output    {:?}", result.output.view().as_slice::<f32>().unwrap_or_default());

    let weight = [1.0f32, 1.0, 1.0, 1.0];
    let args =
        NormRms::new(TensorView::from_slice(&x, &[2, 4])?).weight(TensorView::from_slice(&weight, &[4])?);
    println!("   with a weight:");
    show_choice(&engine, &NORM_RMS, &args.check()?.context())?;

    println!("\n2. attention.gqa.prefill: two query heads share one key head, causal");
    let q = [1.0f32, 0.0, 0.0, 1.0, 0.5, 0.5, 1.0, 1.0];
    let (k, v) = ([1.0f32, 0.0, 0.0, 1.0], [1.0f32, 2.0, 3.0, 4.0]);
    let args = AttentionGqaPrefill::new(
        TensorView::from_slice(&q, &[1, 2, 2, 2])?,
        TensorView::from_slice(&k, &[1, 2, 1, 2])?,
        TensorView::from_slice(&v, &[1, 2, 1, 2])?,
    )
    .causal(true)
    .return_lse(true);
    show_choice(&engine, &ATTENTION_GQA_PREFILL, &args.check()?.context())?;
    let result = attention_gqa_prefill(&engine, args)?;
    println!("   output    {:.4?}", result.output.view().as_slice::<f32>().unwrap_or_default());
    if let Some(lse) = &result.lse {
        println!("   lse       {:.4?}", lse.view().as_slice::<f32>().unwrap_or_default());
    }

    println!("\n3. sampling.topp: the same seed and offset give the same token in every kernel of ours");
    let logits = [0.1f32, 2.5, 0.3, 2.4, -1.0];
    for offset in 0..3 {
        let args = SamplingTopp::new(TensorView::from_slice(&logits, &[5])?, 0.9).seed(7).offset(offset);
        if offset == 0 {
            show_choice(&engine, &SAMPLING_TOPP, &args.check()?.context())?;
        }
        let result = sampling_topp(&engine, args)?;
        println!("   offset {offset}  token {}", result.tokens.view().int_at(&[]));
    }

    println!("\n4. A wrong call is refused with everything that is wrong with it");
    let short = [1.0f32; 3];
    let args = NormRms::new(TensorView::from_slice(&x, &[2, 4])?)
        .weight(TensorView::from_slice(&short, &[3])?)
        .eps(-1.0);
    match norm_rms(&engine, args) {
        Ok(_) => return Err("a wrong call was accepted".into()),
        Err(error) => println!("{error}"),
    }
    Ok(())
}

/// Asks the engine which kernel it would run and says what decided; nothing is run.
fn show_choice(
    engine: &Engine,
    operation: &'static OperationInfo,
    context: &Context,
) -> Result<(), layerzero::core::Error> {
    let plan = engine.which(operation, context)?;
    println!("   chosen    {}", plan.kernel);
    match plan.fallbacks.as_slice() {
        [] => println!("   why       score {:.1}; no other kernel can run this call", plan.score),
        others => println!(
            "   why       score {:.1}, above {}, which would run if it failed",
            plan.score,
            others.join(", ")
        ),
    }
    Ok(())
}

/// What a backend writes: one type, one `run`. Its call is checked, so it only computes.
struct DenseRows;

impl NormRmsKernel for DenseRows {
    fn run(
        &self,
        call: &NormRmsCall<'_>,
        mut out: NormRmsOut<'_>,
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let unsupported = || KernelError::failed("only dense f32 rows without a weight");
        let hidden = usize::try_from(call.axes.hidden).map_err(|_| unsupported())?;
        let (Some(x), Some(output), None) =
            (call.x.as_slice::<f32>(), out.output.as_slice_mut::<f32>(), &call.weight)
        else {
            return Err(unsupported());
        };
        for (row, normalized) in x.chunks_exact(hidden).zip(output.chunks_exact_mut(hidden)) {
            let mean_square = row.iter().map(|value| value * value).sum::<f32>() / hidden as f32;
            let scale = (mean_square + call.eps).sqrt().recip();
            for (value, output) in row.iter().zip(normalized) {
                *output = value * scale;
            }
        }
        Ok(())
    }
}
