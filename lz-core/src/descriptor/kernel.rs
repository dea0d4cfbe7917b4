//! Converts a kernel of a descriptor to a spec: limits become expressions over the operation's names.

use std::collections::BTreeMap;

use lz_schema::DType;
use lz_schema::diagnostics::{Code, Sink, listed, nearest};
use lz_schema::expr::{self, Type};
use lz_schema::model::{Cases, DTypeRef, Kind, Operation, ParamType, Role};
use lz_schema::source::{Node, Span};

use super::{Catalog, Target, catalog, features};
use crate::contract::{entries, first_line, get, items, text, verbatim};
use crate::device::Platform;
use crate::generated::contracts::capabilities_v1 as v1;
use crate::mode::ReductionOrder;
use crate::reason::ReasonCode;
use crate::spec::{DeviceNeeds, KernelSpec, Limit, StrideNeeds};

/// All kernels of a descriptor, once per operation.
pub(super) fn specs(
    capabilities: &v1::Capabilities,
    root: &Node,
    catalog: &Catalog<'_>,
    hash: &str,
    sink: &mut Sink,
) -> Vec<KernelSpec> {
    let mut specs = Vec::new();
    let mut ids: BTreeMap<&str, Span> = BTreeMap::new();
    for (name, span, list) in get(root, "ops").map(entries).into_iter().flatten() {
        let targets = catalog.resolve(name);
        if targets.is_empty() {
            unknown_operation(name, span, catalog, sink);
        }
        let kernels = capabilities.ops.get(name).map_or(&[][..], Vec::as_slice);
        for (kernel, node) in kernels.iter().zip(items(list)) {
            let span = get(node, "kernel_id").map_or(node.span, |node| node.span);
            if let Some(earlier) = ids.insert(&kernel.kernel_id, span) {
                sink.error(Code::DuplicateKernel, span, format!("duplicate kernel `{}`", kernel.kernel_id))
                    .also(earlier, "first written here");
            }
            names_of_fused(node, catalog, sink);
            let first = sink.diagnostics.len();
            for target in &targets {
                let mut reader = Reader {
                    capabilities,
                    kernel,
                    node,
                    operation: target.operation,
                    targets: &targets,
                    sink,
                };
                let mut spec = reader.spec(target);
                spec.capabilities_hash = hash.to_owned();
                specs.push(spec);
            }
            dedup_diagnostics(sink, first, &targets);
        }
    }
    specs
}

/// A problem of an alias is found once per operation behind it; report it once.
fn dedup_diagnostics(sink: &mut Sink, first: usize, targets: &[Target<'_>]) {
    let mut seen: Vec<(Code, Span, String)> = Vec::new();
    for diagnostic in sink.diagnostics.split_off(first.min(sink.diagnostics.len())) {
        let span = diagnostic.labels.first().map(|label| label.span).unwrap_or_default();
        let names = targets.iter().map(|target| target.operation.name.as_str());
        let message = names.fold(diagnostic.message.clone(), |message, name| message.replace(name, "_"));
        let key = (diagnostic.code, span, message);
        if !seen.contains(&key) {
            seen.push(key);
            sink.diagnostics.push(diagnostic);
        }
    }
}

fn unknown_operation(name: &str, span: Span, catalog: &Catalog<'_>, sink: &mut Sink) {
    let near = sink.nearest(name, catalog.names());
    sink.error(Code::UnknownOperation, span, format!("unknown operation or alias `{name}`")).suggest(near);
}

fn names_of_fused(node: &Node, catalog: &Catalog<'_>, sink: &mut Sink) {
    for item in get(node, "fuses_ops").map_or(&[][..], items) {
        if let Some(name) = text(item).filter(|name| catalog.resolve(name).is_empty()) {
            unknown_operation(name, item.span, catalog, sink);
        }
    }
}

/// Converts the contract's platform.
pub(super) fn platform(word: v1::CapabilitiesPlatform) -> Platform {
    match word {
        v1::CapabilitiesPlatform::Cpu => Platform::Cpu,
        v1::CapabilitiesPlatform::Cuda => Platform::Cuda,
        v1::CapabilitiesPlatform::Rocm => Platform::Rocm,
        v1::CapabilitiesPlatform::Hpu => Platform::Hpu,
        v1::CapabilitiesPlatform::Xpu => Platform::Xpu,
        v1::CapabilitiesPlatform::Metal => Platform::Metal,
    }
}

struct Reader<'a, 'b> {
    capabilities: &'a v1::Capabilities,
    kernel: &'a v1::KernelCapabilities,
    node: &'a Node,
    operation: &'a Operation,
    /// All operations that this entry applies to.
    targets: &'b [Target<'a>],
    sink: &'b mut Sink,
}

impl Reader<'_, '_> {
    fn spec(&mut self, target: &Target<'_>) -> KernelSpec {
        let kernel = self.kernel;
        let mut spec = KernelSpec::new(
            &kernel.kernel_id,
            &self.operation.name,
            &self.capabilities.backend,
            &self.capabilities.backend_version,
            platform(self.capabilities.platform),
        );
        spec.dtypes = self.dtypes();
        spec.layouts = self.layouts();
        spec.produces_layout = self.produces_layout();
        spec.device = self.device();
        self.fixed(target, &mut spec);
        self.sizes(&mut spec);
        self.groups(&mut spec);
        self.stated_limits(&mut spec);
        self.formulas(&mut spec);
        self.names();
        spec.quant_formats = self.quant_formats();
        spec.speculative_algorithms = kernel.speculative_algorithms.iter().map(ToString::to_string).collect();
        spec.kv_strategies = kernel.supports_kv_strategies.iter().map(ToString::to_string).collect();
        spec.strides = match (kernel.requires_contiguous, kernel.requires_last_dim_stride1) {
            (true, _) | (false, None) => StrideNeeds::Contiguous,
            (false, Some(true)) => StrideNeeds::LastDense,
            (false, Some(false)) => StrideNeeds::Any,
        };
        if !kernel.alignment.is_power_of_two() {
            let span = self.span_of("alignment");
            self.sink.error(Code::BadNumber, span, "`alignment` must be a power of two");
        }
        spec.alignment = kernel.alignment;
        spec.cuda_graph_safe = kernel.is_cuda_graph_safe;
        spec.cuda_graph_unsafe = !kernel.is_cuda_graph_safe && get(self.node, "is_cuda_graph_safe").is_some();
        spec.deterministic = kernel.deterministic;
        spec.tp_invariant = kernel.is_tp_invariant;
        spec.batch_invariant = kernel.is_batch_invariant;
        spec.max_tp_size = kernel.max_tp_size;
        spec.reduction_order =
            kernel.reduction_order.and_then(|word| ReductionOrder::from_name(&word.to_string()));
        spec.reduced_precision = kernel.math_mode != v1::KernelCapabilitiesMathMode::Ieee;
        spec.jit = kernel.jit;
        spec.prepacked_weights = kernel.requires_packed_weights;
        spec.writes_into_output = kernel.writes_into_output;
        spec.priority = kernel.priority;
        spec.fuses.clone_from(&kernel.fuses_ops);
        spec.adapts = kernel
            .adapts
            .iter()
            .filter_map(|word| crate::plan::TransformKind::from_name(&word.to_string()))
            .collect();
        spec.transform_cost = kernel.transform_cost_hint;
        spec
    }

    fn span_of(&self, key: &str) -> Span {
        get(self.node, key).map_or_else(|| self.head(), |node| node.span)
    }

    fn head(&self) -> Span {
        get(self.node, "kernel_id")
            .map_or_else(|| first_line(&self.sink.source, self.node.span), |node| node.span)
    }

    fn missing(&mut self, key: &str, why: &str) {
        let span = self.head();
        let message =
            format!("`{}` does not set `{key}`, but `{}` {why}", self.kernel.kernel_id, self.operation.name);
        let error = self.sink.error(Code::MissingLimit, span, message);
        if key.starts_with("max_") {
            error.note("`null` means no limit");
        }
    }

    fn dtypes(&mut self) -> Vec<(String, Vec<DType>)> {
        let listed_dtypes = parse(&self.kernel.dtypes);
        let mut all = Vec::new();
        for (index, variable) in self.operation.types.iter().enumerate() {
            let users: Vec<usize> = (0..self.operation.inputs.len())
                .filter(|input| {
                    let cases: &Cases<DTypeRef> = &self.operation.inputs[*input].dtype;
                    self.operation.inputs[*input].kind == Kind::Tensor
                        && cases.all().contains(&DTypeRef::Variable(index))
                })
                .collect();
            let required = users.iter().any(|input| self.operation.inputs[*input].optional.is_none());
            let is_mask =
                users.iter().all(|input| self.operation.inputs[*input].name == "mask") && !users.is_empty();
            let is_cache = users.iter().any(|input| catalog::is_cache(self.operation, *input)) && index > 0;
            let claimed: Vec<DType> = if let Some(own) = self.kernel.dtypes_by_variable.get(&variable.name) {
                parse(own)
            } else if is_mask {
                self.mask_dtypes()
            } else if is_cache && !self.kernel.supports_kv_cache_dtypes.is_empty() {
                parse(&self.kernel.supports_kv_cache_dtypes)
            } else {
                listed_dtypes.clone()
            };
            let accepted: Vec<DType> =
                variable.dtypes.iter().copied().filter(|dtype| claimed.contains(dtype)).collect();
            if accepted.is_empty() && required {
                let names = listed(variable.dtypes.iter().map(|dtype| dtype.name()));
                let span = self.span_of("dtypes");
                let message = format!(
                    "`{}` has no dtype for `{}` of `{}`",
                    self.kernel.kernel_id, variable.name, self.operation.name
                );
                self.sink
                    .error(Code::MissingLimit, span, message)
                    .note(format!("allowed are {names}; `dtypes_by_variable` can restrict them"));
            }
            if !accepted.is_empty() {
                all.push((variable.name.clone(), accepted));
            }
        }
        for (name, span, _) in get(self.node, "dtypes_by_variable").map(entries).into_iter().flatten() {
            let known = || {
                self.targets
                    .iter()
                    .flat_map(|target| target.operation.types.iter().map(|ty| ty.name.as_str()))
            };
            if !known().any(|known| known == name) {
                let near = self.sink.nearest(name, known());
                let message = format!("`{}` has no dtype variable `{name}`", self.operation.name);
                self.sink.error(Code::NoSuchSize, span, message).suggest(near);
            }
        }
        all
    }

    fn mask_dtypes(&mut self) -> Vec<DType> {
        use v1::KernelCapabilitiesSupportedAttnMaskTypesItem as Mask;
        let kernel = self.kernel;
        if kernel.supports_attn_mask && kernel.supported_attn_mask_types.is_empty() {
            self.missing("supported_attn_mask_types", "takes several kinds of mask");
        }
        DType::ALL
            .into_iter()
            .filter(|dtype| {
                let kind = if *dtype == DType::Bool { Mask::Bool } else { Mask::Float };
                kernel.supported_attn_mask_types.contains(&kind)
            })
            .collect()
    }

    fn layout_cases(operation: &Operation) -> Option<&[String]> {
        let param = operation.params.iter().find(|param| param.name == "layout")?;
        match &param.ty {
            ParamType::Enum(cases) => Some(cases),
            _ => None,
        }
    }

    fn layouts(&mut self) -> Vec<String> {
        let stated: Vec<(String, Span)> = ["requires_layouts", "supports_kv_cache_layouts"]
            .into_iter()
            .filter_map(|key| get(self.node, key))
            .flat_map(items)
            .filter_map(|item| Some((text(item)?.to_owned(), item.span)))
            .collect();
        let mut known: Vec<&str> = Vec::new();
        for case in self.targets.iter().filter_map(|target| Self::layout_cases(target.operation)).flatten() {
            if !known.contains(&case.as_str()) {
                known.push(case);
            }
        }
        for (name, span) in &stated {
            if name == "any" || known.contains(&name.as_str()) {
                continue;
            }
            if known.is_empty() {
                let message = format!("`{}` has no layouts", self.operation.name);
                self.sink.error(Code::NoSuchSize, *span, message).note("write [\"any\"]");
            } else {
                let message = format!("`{name}` is not a layout of `{}`", self.operation.name);
                let near = self.sink.nearest(name, known.iter().copied());
                self.sink
                    .error(Code::UnknownCase, *span, message)
                    .suggest(near)
                    .note(format!("known layouts: {}", listed(known.iter().copied())));
            }
        }
        let Some(cases) = Self::layout_cases(self.operation) else { return Vec::new() };
        let any = stated.iter().any(|(name, _)| name == "any");
        let accepted: Vec<String> = cases
            .iter()
            .filter(|case| any || stated.iter().any(|(name, _)| name == *case))
            .cloned()
            .collect();
        if accepted.is_empty() && stated.iter().all(|(name, _)| known.contains(&name.as_str())) {
            self.missing("requires_layouts", "has layouts of its own");
        }
        accepted
    }

    fn produces_layout(&mut self) -> Option<String> {
        let name = self.kernel.produces_layout.clone()?;
        let cases = Self::layout_cases(self.operation)?;
        if cases.contains(&name) {
            return Some(name);
        }
        let span = self.span_of("produces_layout");
        let message = format!("`{name}` is not a layout of `{}`", self.operation.name);
        self.sink
            .error(Code::UnknownCase, span, message)
            .suggest(nearest(&name, cases.iter().map(String::as_str)));
        None
    }

    fn device(&mut self) -> DeviceNeeds {
        let kernel = self.kernel;
        if self.capabilities.platform == v1::CapabilitiesPlatform::Cuda && get(self.node, "min_sm").is_none()
        {
            let span = self.head();
            let message = format!("`{}` does not set `min_sm`, but it runs on CUDA", kernel.kernel_id);
            self.sink.error(Code::MissingLimit, span, message).note("`null` means no limit");
        }
        if let (Some(min), Some(max)) = (kernel.min_sm, kernel.max_sm)
            && min > max
        {
            let span = self.span_of("max_sm");
            self.sink.error(
                Code::BadNumber,
                span,
                format!("the range of compute capabilities {min} to {max} is empty"),
            );
        }
        for item in get(self.node, "isa").map_or(&[][..], items) {
            if let Some(name) = text(item).filter(|name| crate::device::Isa::from_name(name).is_none()) {
                self.sink.error(Code::UnknownWord, item.span, format!("unknown CPU feature `{name}`"));
            }
        }
        DeviceNeeds {
            min_sm: kernel.min_sm,
            max_sm: kernel.max_sm,
            generations: kernel.supported_generations.clone(),
            min_tensor_core_generation: kernel.min_tensor_core_generation,
            instruction_set: kernel.instruction_set.map(|set| set.to_string()),
            isa: kernel.isa.clone(),
            min_driver: kernel.min_driver.clone(),
        }
    }

    fn fixed(&mut self, target: &Target<'_>, spec: &mut KernelSpec) {
        let fixes = target.alias.map_or(&[][..], |alias| &alias.fixes);
        let mut names = Vec::new();
        for (param, value) in fixes {
            if let Some(param) = self.operation.params.get(*param) {
                names.push(param.name.as_str());
                spec.limits.push(features::fixed(param, value));
            }
        }
        spec.limits.extend(features::limits(self.operation, self.kernel, &names));
    }

    /// Numeric limits: on heads, sequences and batches.
    fn sizes(&mut self, spec: &mut KernelSpec) {
        let kernel = self.kernel;
        let heads = self.axes(|axis| matches!(axis.name.as_str(), "head_dim" | "head_dim_v"));
        let lengths = self.axes(|axis| axis.role == Role::Length);
        let batches = self.axes(|axis| axis.role == Role::Batch);
        let numbers = [
            ("min_head_dim", kernel.min_head_dim, &heads, ">=", ReasonCode::HeadDimInvalid),
            ("max_head_dim", kernel.max_head_dim, &heads, "<=", ReasonCode::HeadDimTooLarge),
            ("max_seq_len", kernel.max_seq_len, &lengths, "<=", ReasonCode::SeqTooLong),
            ("min_batch_size", kernel.min_batch_size, &batches, ">=", ReasonCode::AxisLimit),
            ("max_batch_size", kernel.max_batch_size, &batches, "<=", ReasonCode::AxisLimit),
        ];
        for (key, bound, axes, operator, code) in numbers {
            self.check_applies(key, bound.is_some(), axes);
            let needed = matches!(key, "max_head_dim" | "max_seq_len") && !axes.is_empty();
            if needed && get(self.node, key).is_none() {
                self.missing(key, if key == "max_seq_len" { "has sequences" } else { "has heads" });
            }
            for (axis, bound) in axes.iter().zip(std::iter::repeat(bound)) {
                spec.limits
                    .extend(bound.map(|bound| Limit { check: format!("{axis} {operator} {bound}"), code }));
            }
        }
        self.check_applies("head_dim_multiple", kernel.head_dim_multiple.is_some(), &heads);
        if let Some(multiple) = kernel.head_dim_multiple {
            if multiple == 0 {
                let span = self.span_of("head_dim_multiple");
                self.sink.error(Code::BadNumber, span, "`head_dim_multiple` must not be 0");
            }
            for axis in &heads {
                let check = format!("{axis} % {multiple} == 0");
                spec.limits.push(Limit { check, code: ReasonCode::HeadDimAlignment });
            }
        }
        if heads.len() == 2 && !kernel.supports_unequal_head_dims {
            let check = "head_dim == head_dim_v".to_owned();
            spec.limits.push(Limit { check, code: ReasonCode::HeadDimInvalid });
        }
    }

    /// Rejects a limit on a size that no operation of the entry has: it would never apply.
    fn check_applies(&mut self, key: &str, stated: bool, axes: &[String]) {
        let elsewhere = self.targets.len() > 1;
        if stated && axes.is_empty() && !elsewhere {
            let span = self.span_of(key);
            let message =
                format!("`{key}` does not apply to `{}`, which has no such size", self.operation.name);
            self.sink
                .error(Code::NoSuchSize, span, message)
                .note("put conditions over other axes into `limits`");
        }
    }

    fn axes(&self, predicate: impl Fn(&lz_schema::model::Axis) -> bool) -> Vec<String> {
        let axes = self
            .operation
            .axes
            .iter()
            .filter(|axis| predicate(axis) && axis.value.is_none() && !axis.dynamic);
        axes.map(|axis| axis.name.clone()).collect()
    }

    fn groups(&mut self, spec: &mut KernelSpec) {
        let has = |name: &str| self.operation.axes.iter().any(|axis| axis.name == name);
        if !has("heads") || !has("kv_heads") {
            return;
        }
        if !self.kernel.supports_gqa {
            let check = "heads == kv_heads".to_owned();
            spec.limits.push(Limit { check, code: ReasonCode::GqaUnsupported });
        } else if !self.kernel.gqa_group_sizes.is_empty() {
            let sizes: Vec<String> = self.kernel.gqa_group_sizes.iter().map(ToString::to_string).collect();
            let check = format!("kv_heads >= 1 and heads // kv_heads in [{}]", sizes.join(", "));
            spec.limits.push(Limit { check, code: ReasonCode::GqaGroupUnsupported });
        }
    }

    fn stated_limits(&mut self, spec: &mut KernelSpec) {
        let nodes = get(self.node, "limits").map_or(&[][..], items);
        for (limit, node) in self.kernel.limits.iter().zip(nodes) {
            if let Some(check) = get(node, "check") {
                self.expression(&limit.check, check, &Type::Bool);
            }
            match ReasonCode::parse(&limit.code) {
                Some(code) => spec.limits.push(Limit { check: limit.check.clone(), code }),
                None => {
                    let span = get(node, "code").map_or(node.span, |node| node.span);
                    let near = crate::reason::catalog().nearest(&limit.code);
                    self.sink
                        .error(Code::UnknownReason, span, format!("unknown reason code `{}`", limit.code))
                        .suggest(near);
                }
            }
        }
    }

    fn formulas(&mut self, spec: &mut KernelSpec) {
        let kernel = self.kernel;
        for (key, formula) in
            [("workspace_bytes", &kernel.workspace_bytes), ("block_threads", &kernel.block_threads)]
        {
            if let (Some(formula), Some(node)) = (formula, get(self.node, key)) {
                self.expression(formula, node, &Type::Int);
            }
        }
        spec.workspace.clone_from(&kernel.workspace_bytes);
        spec.block.clone_from(&kernel.block_threads);
        let (Some(grid), Some(node)) = (&kernel.grid_layout, get(self.node, "grid_layout")) else { return };
        let tiles = if grid.tiles_sequence { self.sequence_tiles(grid.tile_size) } else { None };
        let formulas = [
            ("x_formula", Some(&grid.x_formula)),
            ("y_formula", grid.y_formula.as_ref()),
            ("z_formula", grid.z_formula.as_ref()),
        ];
        let texts = formulas.map(|(key, formula)| {
            let Some(formula) = formula else { return "1".to_owned() };
            let whole = match &tiles {
                Some(tiles) => replace_word(formula, "seq_tiles", tiles),
                None => formula.clone(),
            };
            if let Some(node) = get(node, key) {
                self.expression(&whole, node, &Type::Int);
            }
            whole
        });
        let [x, y, z] = texts;
        let x = if grid.blocks_per_batch_head == 1 {
            x
        } else {
            format!("({x}) * {}", grid.blocks_per_batch_head)
        };
        spec.grid = Some([x, y, z]);
    }

    /// The number of tiles of the longest sequence.
    fn sequence_tiles(&self, tile: i64) -> Option<String> {
        let lengths = self.axes(|axis| axis.role == Role::Length);
        match lengths.as_slice() {
            [] => None,
            [only] => Some(format!("ceil_div({only}, {tile})")),
            several => Some(format!("ceil_div(max({}), {tile})", several.join(", "))),
        }
    }

    fn expression(&mut self, formula: &str, node: &Node, expected: &Type) {
        let scope = catalog::scope(self.operation);
        let Err(errors) = expr::check_expecting(formula, &scope, expected) else { return };
        for error in errors {
            // Spans of a rewritten formula do not match the file; underline all of it.
            let exact = verbatim(node).filter(|_| text(node) == Some(formula));
            let span = match exact {
                Some(at) => Span::new(at + error.span.start, at + error.span.end),
                None => node.span,
            };
            let code = crate::expression_spelling::code_of(&error.kind);
            let message = crate::expression_spelling::message_of(&error.kind);
            self.sink
                .error(code, span, message)
                .suggest(error.kind.suggestion())
                .note(format!("the expression is about `{}`", self.operation.name));
        }
    }

    /// Checks that named inputs and params exist in one of the operations.
    fn names(&mut self) {
        for (key, what) in [("optional_inputs", "optional input"), ("params", "param")] {
            for item in get(self.node, key).map_or(&[][..], items) {
                let Some(name) = text(item) else { continue };
                let known: Vec<&str> = self
                    .targets
                    .iter()
                    .flat_map(|target| {
                        let inputs = target.operation.inputs.iter().filter(|input| input.optional.is_some());
                        let params = target.operation.params.iter().map(|param| param.name.as_str());
                        let names: Vec<&str> = match key {
                            "params" => params.collect(),
                            _ => inputs.map(|input| input.name.as_str()).collect(),
                        };
                        names
                    })
                    .collect();
                if !known.contains(&name) {
                    let near = self.sink.nearest(name, known.iter().copied());
                    let message = format!("`{}` has no {what} `{name}`", self.operation.name);
                    self.sink.error(Code::NoSuchSize, item.span, message).suggest(near);
                }
            }
        }
    }

    fn quant_formats(&mut self) -> Vec<String> {
        let formats: Vec<String> = self.kernel.quant_formats.iter().map(ToString::to_string).collect();
        if formats.is_empty() && self.operation.params.iter().any(|param| param.name == "format") {
            self.missing("quant_formats", "has formats");
        }
        formats
    }
}

fn parse(names: &[v1::DTypeName]) -> Vec<DType> {
    names.iter().filter_map(|name| DType::parse(&name.to_string())).collect()
}

/// Replaces whole words.
fn replace_word(text: &str, word: &str, by: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, found) = rest.split_at(at);
        let after = &found[word.len()..];
        result.push_str(before);
        let whole = !result.ends_with(is_part) && !after.starts_with(is_part);
        result.push_str(if whole { by } else { word });
        rest = after;
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_are_replaced() {
        assert_eq!(
            replace_word("batch * seq_tiles + my_seq_tiles", "seq_tiles", "ceil_div(s, 8)"),
            "batch * ceil_div(s, 8) + my_seq_tiles"
        );
    }
}
