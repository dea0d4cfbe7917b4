//! Multi-head latent attention (MLA) in the absorbed form equals GQA with one KV head over concatenated keys.

use lz_ops::{
    AttentionMlaDecode, AttentionMlaDecodePaged, AttentionMlaPrefill, attention_mla_decode,
    attention_mla_decode_paged, attention_mla_prefill,
};

use crate::ragged::Cache;
use crate::support::{AttentionResult, Problem, engine, view};

const CKV: usize = 4;
const KPE: usize = 2;

/// A problem whose keys are latents followed by their rotary parts, and whose values are the latents.
struct Latent {
    whole: Problem,
    q_nope: Vec<f32>,
    q_pe: Vec<f32>,
    ckv: Vec<f32>,
    kpe: Vec<f32>,
}

impl Latent {
    fn new(queries: usize, keys: usize, heads: usize, seed: u64) -> Latent {
        let mut whole = Problem::new([1, queries, keys, heads, 1, CKV + KPE, CKV], seed);
        let first = |data: &[f32]| -> Vec<f32> {
            data.chunks(CKV + KPE).flat_map(|row| row[..CKV].to_vec()).collect()
        };
        let last = |data: &[f32]| -> Vec<f32> {
            data.chunks(CKV + KPE).flat_map(|row| row[CKV..].to_vec()).collect()
        };
        let (q_nope, q_pe, ckv, kpe) = (first(&whole.q), last(&whole.q), first(&whole.k), last(&whole.k));
        whole.v = ckv.clone();
        Latent { whole, q_nope, q_pe, ckv, kpe }
    }

    fn shapes(&self) -> [[i64; 3]; 4] {
        let (m, h, l) = (self.whole.queries as i64, self.whole.heads as i64, self.whole.keys as i64);
        [[m, h, CKV as i64], [m, h, KPE as i64], [l, 1, CKV as i64], [l, 1, KPE as i64]]
    }

    fn prefill(&self, causal: bool, offset: Option<i64>) -> AttentionResult {
        let shapes = self.shapes();
        let args = AttentionMlaPrefill {
            causal_offset: offset,
            ..AttentionMlaPrefill::new(
                view(&self.q_nope, &shapes[0]),
                view(&self.q_pe, &shapes[1]),
                view(&self.ckv, &shapes[2]),
                view(&self.kpe, &shapes[3]),
                0.3,
            )
        };
        let result = attention_mla_prefill(engine(), args.causal(causal).return_lse(true)).unwrap();
        AttentionResult::of(&result.output, result.lse.as_ref())
    }

    fn decode(&self) -> AttentionResult {
        let shapes = self.shapes();
        let args = AttentionMlaDecode::new(
            view(&self.q_nope, &shapes[0]),
            view(&self.q_pe, &shapes[1]),
            view(&self.ckv, &shapes[2]),
            view(&self.kpe, &shapes[3]),
            0.3,
        );
        let result = attention_mla_decode(engine(), args.return_lse(true)).unwrap();
        AttentionResult::of(&result.output, result.lse.as_ref())
    }
}

#[test]
fn latent_attention_is_attention_over_concatenated_keys() {
    let latent = Latent::new(3, 5, 2, 201);
    latent.prefill(false, None).assert_matches(&latent.whole.gqa(|args| args.sm_scale(0.3)));
    latent.decode().assert_matches(&latent.whole.gqa(|args| args.sm_scale(0.3)));
    latent.prefill(true, None).assert_matches(&latent.whole.gqa(|args| args.sm_scale(0.3).causal(true)));
    for offset in [0, -2, 1] {
        latent
            .prefill(true, Some(offset))
            .assert_matches(&latent.whole.gqa(|args| args.sm_scale(0.3).causal(true).causal_offset(offset)));
        // Without causality the offset is ignored.
        latent.prefill(false, Some(offset)).assert_matches(&latent.decode());
    }
}

#[test]
fn an_empty_cache_gives_zeros() {
    let latent = Latent::new(2, 0, 2, 203);
    let zeros = AttentionResult { output: vec![0.0; 16], lse: vec![f64::NEG_INFINITY; 4] };
    latent.prefill(true, None).assert_matches(&zeros);
    latent.decode().assert_matches(&zeros);
}

#[test]
fn nan_latents_affect_only_rows_that_see_them() {
    let mut latent = Latent::new(2, 2, 1, 207);
    latent.kpe[KPE] = f32::NAN;
    let attention_result = latent.prefill(true, None);
    assert!(attention_result.lse[0].is_finite() && attention_result.lse[1].is_nan());
    assert!(
        attention_result.output[..4].iter().all(|x| x.is_finite())
            && attention_result.output[4..].iter().all(|x| x.is_nan())
    );
}

#[test]
fn latent_with_score_minus_infinity_is_ignored() {
    let mut latent = Latent::new(1, 2, 1, 209);
    latent.q_nope.fill(1.0);
    let one = Latent {
        whole: Problem { keys: 1, ..latent.whole.clone() },
        q_nope: latent.q_nope.clone(),
        q_pe: latent.q_pe.clone(),
        ckv: latent.ckv[..CKV].to_vec(),
        kpe: latent.kpe[..KPE].to_vec(),
    };
    latent.ckv[CKV..].fill(f32::NEG_INFINITY);
    latent.decode().assert_matches(&one.decode());
    latent.prefill(true, None).assert_matches(&one.prefill(false, None));
    latent.ckv.fill(f32::NEG_INFINITY);
    latent.decode().assert_matches(&AttentionResult { output: vec![0.0; CKV], lse: vec![f64::NEG_INFINITY] });
}

#[test]
fn paged_decode_is_decode_of_each_request() {
    for page_size in [1, 2, 5] {
        let requests: Vec<Latent> =
            [4, 0, 1, 7].iter().zip(0..).map(|(&keys, seed)| Latent::new(1, keys, 3, 300 + seed)).collect();
        let mut expected = AttentionResult::default();
        for request in &requests {
            let attention_result = request.decode();
            expected.output.extend(attention_result.output);
            expected.lse.extend(attention_result.lse);
        }
        let joined = |part: fn(&Latent) -> &Vec<f32>| -> Vec<f32> {
            requests.iter().flat_map(|request| part(request).clone()).collect()
        };
        let (q_nope, q_pe) = (joined(|r| &r.q_nope), joined(|r| &r.q_pe));
        let ckv: Vec<&[f32]> = requests.iter().map(|request| request.ckv.as_slice()).collect();
        let kpe: Vec<&[f32]> = requests.iter().map(|request| request.kpe.as_slice()).collect();
        let (ckv, kpe) = (Cache::new(&ckv, CKV, page_size), Cache::new(&kpe, KPE, page_size));
        let pages = ckv.page_count as i64;
        let args = AttentionMlaDecodePaged::new(
            view(&q_nope, &[4, 3, CKV as i64]),
            view(&q_pe, &[4, 3, KPE as i64]),
            view(&ckv.pages, &[pages, page_size as i64, CKV as i64]),
            view(&kpe.pages, &[pages, page_size as i64, KPE as i64]),
            view(&ckv.indptr, &[5]),
            view(&ckv.indices, &[ckv.indices.len() as i64]),
            view(&ckv.last_page_len, &[4]),
            0.3,
        );
        let result = attention_mla_decode_paged(engine(), args.return_lse(true)).unwrap();
        AttentionResult::of(&result.output, result.lse.as_ref()).assert_matches(&expected);
    }
}
