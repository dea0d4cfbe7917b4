//! `#[kernel(…)]` as written on an `impl`: a closed list of entries, read but not yet held against a schema.

use lz_schema::diagnostics::nearest;
use proc_macro2::Span;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Ident, Lit, LitStr, Result, Token, bracketed, parenthesized};

/// Everything between the parentheses.
pub struct Attribute {
    /// `id = "cpu.norm.rms"`, which every kernel has.
    pub id: LitStr,
    /// `operation = "norm.rms"`: the operation by name, in the catalog or in `schema`.
    pub operation: Option<LitStr>,
    /// `schema = "path.yaml"`: the file of an operation that is not in the catalog.
    pub schema: Option<LitStr>,
    /// `specialized = "attention.standard.decode"`: a specialization of the operation, whose calls the kernel also runs.
    pub specialized: Option<LitStr>,
    /// The rest, in order.
    pub entries: Vec<Entry>,
}

/// One entry.
pub struct Entry {
    /// Its key, one of `KEYS`.
    pub key: Ident,
    /// What follows it.
    pub written: AttributeValue,
}

/// What follows a key.
pub enum AttributeValue {
    /// Nothing, or `= true` and `= false`.
    Flag(bool),
    /// `= 50`
    Number(syn::LitInt),
    /// `= "text"`
    Text(LitStr),
    /// `= cpu`
    Word(Ident),
    /// `("a", "b")`
    Texts(Vec<LitStr>),
    /// `("hidden % 8 == 0" => HEAD_DIM_ALIGNMENT, …)`
    Limits(Vec<(LitStr, Ident)>),
    /// `(T = [f32, f16], …)`
    Dtypes(Vec<(Ident, Vec<Ident>)>),
}

/// What a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Flag,
    Number,
    Text,
    Word,
    Texts,
    Limits,
    Dtypes,
}

/// Every key besides `id`, `operation`, `schema` and `specialized`; each is a field of the kernel's spec.
const KEYS: &[(&str, Form)] = &[
    ("adapts", Form::Texts),
    ("alignment", Form::Number),
    ("backend", Form::Text),
    ("batch_invariant", Form::Flag),
    ("block", Form::Text),
    ("cuda_graph_safe", Form::Flag),
    ("deterministic", Form::Flag),
    ("dtypes", Form::Dtypes),
    ("fuses", Form::Texts),
    ("generations", Form::Texts),
    ("grid", Form::Texts),
    ("instruction_set", Form::Text),
    ("isa", Form::Texts),
    ("jit", Form::Flag),
    ("kv_strategies", Form::Texts),
    ("layouts", Form::Texts),
    ("limits", Form::Limits),
    ("max_sm", Form::Number),
    ("max_tp_size", Form::Number),
    ("min_driver", Form::Text),
    ("min_sm", Form::Number),
    ("min_tensor_core_generation", Form::Number),
    ("platform", Form::Word),
    ("prepacked_weights", Form::Flag),
    ("priority", Form::Number),
    ("produces_layout", Form::Text),
    ("quant_formats", Form::Texts),
    ("reduced_precision", Form::Flag),
    ("reduction_order", Form::Word),
    ("speculative_algorithms", Form::Texts),
    ("strides", Form::Word),
    ("tp_invariant", Form::Flag),
    ("transform_cost", Form::Number),
    ("version", Form::Text),
    ("workspace", Form::Text),
    ("writes_into_output", Form::Flag),
];

impl Parse for Attribute {
    fn parse(input: ParseStream<'_>) -> Result<Attribute> {
        let (mut id, mut operation, mut schema, mut specialized) = (None, None, None, None);
        let mut entries: Vec<Entry> = Vec::new();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            let field = match key.to_string().as_str() {
                "id" => Some(&mut id),
                "operation" => Some(&mut operation),
                "schema" => Some(&mut schema),
                "specialized" => Some(&mut specialized),
                _ => None,
            };
            let repeated = match field {
                Some(field) => {
                    input.parse::<Token![=]>()?;
                    field.replace(input.parse::<LitStr>()?).is_some()
                }
                None => {
                    let repeated = entries.iter().any(|entry| entry.key == key);
                    entries.push(Entry { written: written(&key, input)?, key: key.clone() });
                    repeated
                }
            };
            if repeated {
                return Err(Error::new(key.span(), format!("`{key}` is given twice")));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        let id = id.ok_or_else(|| Error::new(Span::call_site(), "a kernel needs `id = \"backend.name\"`"))?;
        Ok(Attribute { id, operation, schema, specialized, entries })
    }
}

fn written(key: &Ident, input: ParseStream<'_>) -> Result<AttributeValue> {
    let name = key.to_string();
    let Some((_, form)) = KEYS.iter().find(|(known, _)| *known == name) else {
        let known = KEYS.iter().map(|(known, _)| *known).chain(["id", "operation", "schema", "specialized"]);
        let hint = nearest(&name, known).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        return Err(Error::new(key.span(), format!("unknown key `{name}` of `#[kernel]`{hint}")));
    };
    match form {
        Form::Flag if !input.peek(Token![=]) => return Ok(AttributeValue::Flag(true)),
        Form::Flag | Form::Number | Form::Text | Form::Word => _ = input.parse::<Token![=]>()?,
        Form::Texts | Form::Limits | Form::Dtypes => {
            let inside;
            parenthesized!(inside in input);
            return list(*form, &inside);
        }
    }
    Ok(match form {
        Form::Flag => AttributeValue::Flag(input.parse::<syn::LitBool>()?.value),
        Form::Number => AttributeValue::Number(input.parse()?),
        Form::Word => AttributeValue::Word(input.parse()?),
        _ => match input.parse::<Lit>()? {
            Lit::Str(text) => AttributeValue::Text(text),
            other => return Err(Error::new(other.span(), format!("`{name}` takes a text in quotes"))),
        },
    })
}

fn list(form: Form, inside: ParseStream<'_>) -> Result<AttributeValue> {
    Ok(match form {
        Form::Limits => {
            let limit = |input: ParseStream<'_>| {
                let check = input.parse::<LitStr>()?;
                input.parse::<Token![=>]>()?;
                Ok((check, input.parse::<Ident>()?))
            };
            AttributeValue::Limits(
                Punctuated::<_, Token![,]>::parse_terminated_with(inside, limit)?.into_iter().collect(),
            )
        }
        Form::Dtypes => {
            let variable = |input: ParseStream<'_>| {
                let name = input.parse::<Ident>()?;
                input.parse::<Token![=]>()?;
                let dtypes;
                bracketed!(dtypes in input);
                let dtypes = Punctuated::<Ident, Token![,]>::parse_terminated(&dtypes)?;
                Ok((name, dtypes.into_iter().collect()))
            };
            AttributeValue::Dtypes(
                Punctuated::<_, Token![,]>::parse_terminated_with(inside, variable)?.into_iter().collect(),
            )
        }
        _ => AttributeValue::Texts(
            Punctuated::<LitStr, Token![,]>::parse_terminated(inside)?.into_iter().collect(),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_so_that_additions_are_seen() {
        assert!(KEYS.is_sorted_by_key(|(key, _)| *key));
    }

    #[test]
    fn every_form_is_read() {
        let text = r#"id = "a.b", operation = "norm.rms", specialized = "norm.rms.one", limits("x > 0" => ZERO_SIZE), dtypes(T = [f32], W = []), jit,
            deterministic = false, priority = 3, platform = cuda, isa("avx2", "fma",), version = "2""#;
        let attribute: Attribute = syn::parse_str(text).unwrap();
        assert_eq!(attribute.id.value(), "a.b");
        assert_eq!(attribute.specialized.map(|name| name.value()).as_deref(), Some("norm.rms.one"));
        assert_eq!(attribute.entries.len(), 8);
        assert!(matches!(&attribute.entries[2].written, AttributeValue::Flag(true)));
        assert!(matches!(&attribute.entries[6].written, AttributeValue::Texts(texts) if texts.len() == 2));
    }

    #[test]
    fn mistakes_are_named() {
        let refusal = |text: &str| syn::parse_str::<Attribute>(text).err().unwrap().to_string();
        assert_eq!(refusal("jit"), "a kernel needs `id = \"backend.name\"`");
        assert_eq!(refusal("id = \"a\", jit, jit"), "`jit` is given twice");
        assert_eq!(
            refusal("prioritty = 3"),
            "unknown key `prioritty` of `#[kernel]`; did you mean `priority`?"
        );
        assert_eq!(refusal("version = 3"), "`version` takes a text in quotes");
    }
}
