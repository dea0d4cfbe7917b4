//! Parser: tokens to the untyped tree. Names and types are not checked.
//!
//! Loosest to tightest: `if else`, `or`, `and`, `not`, comparisons, `+ -`, `* / // %`, unary `-`, calls and
//! parentheses. All recursion goes through [`Parser::nested`], which bounds the depth. All nodes are counted, which bounds
//! the height of trees that grow to the left without recursion.

use super::ast::{Arithmetic, Comparison, Expr, ExprKind, Link, Logic, Span};
use super::error::{ExprError, ExprErrorKind};
use super::token::{Token, TokenKind, tokenize};
use super::{MAX_NESTING, MAX_NODES};

/// Parses an expression. Names and types are not checked: see [`super::check`].
pub fn parse(text: &str) -> Result<Expr, ExprError> {
    let tokens = tokenize(text)?;
    let mut parser = Parser { text, tokens, position: 0, depth: 0, nodes: 0, open: Vec::new() };
    if parser.peek() == &TokenKind::End {
        return Err(ExprError { kind: ExprErrorKind::Empty, span: Span::new(0, text.len()) });
    }
    let root = parser.expression()?;
    match parser.peek() {
        TokenKind::End => Ok(root),
        _ => Err(parser.unexpected("an operator or the end")),
    }
}

type Parsed = Result<Expr, ExprError>;

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    position: usize,
    depth: usize,
    nodes: usize,
    /// The open parentheses and brackets, innermost last, for the error at the end of the text.
    open: Vec<(char, Span)>,
}

impl Parser<'_> {
    /// `or_level [if or_level else expression]`
    fn expression(&mut self) -> Parsed {
        let then = self.or_level()?;
        if !self.take(&TokenKind::If) {
            return Ok(then);
        }
        let condition = self.or_level()?;
        if !self.take(&TokenKind::Else) {
            return Err(self.unexpected("`else`"));
        }
        let otherwise = self.nested(Self::expression)?;
        let span = then.span.to(otherwise.span);
        let (then, condition, otherwise) = (Box::new(then), Box::new(condition), Box::new(otherwise));
        self.node(ExprKind::Conditional { then, condition, otherwise }, span)
    }

    fn or_level(&mut self) -> Parsed {
        let mut left = self.and_level()?;
        while self.take(&TokenKind::Or) {
            let right = self.and_level()?;
            left = self.logic(Logic::Or, left, right)?;
        }
        Ok(left)
    }

    fn and_level(&mut self) -> Parsed {
        let mut left = self.not_level()?;
        while self.take(&TokenKind::And) {
            let right = self.not_level()?;
            left = self.logic(Logic::And, left, right)?;
        }
        Ok(left)
    }

    fn logic(&mut self, operator: Logic, left: Expr, right: Expr) -> Parsed {
        let span = left.span.to(right.span);
        self.node(ExprKind::Logic { operator, left: Box::new(left), right: Box::new(right) }, span)
    }

    fn not_level(&mut self) -> Parsed {
        let start = self.span();
        if !self.take(&TokenKind::Not) {
            return self.comparison();
        }
        let operand = self.nested(Self::not_level)?;
        let span = start.to(operand.span);
        self.node(ExprKind::Not(Box::new(operand)), span)
    }

    fn comparison(&mut self) -> Parsed {
        let first = self.sum()?;
        let mut span = first.span;
        let mut links = Vec::new();
        loop {
            let operator = match self.peek() {
                TokenKind::EqualEqual => Comparison::Equal,
                TokenKind::NotEqual => Comparison::NotEqual,
                TokenKind::Less => Comparison::Less,
                TokenKind::LessEqual => Comparison::LessOrEqual,
                TokenKind::Greater => Comparison::Greater,
                TokenKind::GreaterEqual => Comparison::GreaterOrEqual,
                TokenKind::In | TokenKind::Not => {
                    let (items, list) = self.membership_list(&mut links)?;
                    span = span.to(list);
                    // A list cannot be the left operand of a further comparison.
                    if is_comparison(self.peek()) {
                        return Err(ExprError { kind: ExprErrorKind::MisplacedList, span: list });
                    }
                    debug_assert!(items > 0, "an empty list was refused");
                    break;
                }
                _ => break,
            };
            self.position += 1;
            let operand = self.sum()?;
            span = span.to(operand.span);
            self.count(operand.span)?;
            links.push(Link::Compare { operator, operand });
        }
        if links.is_empty() {
            return Ok(first);
        }
        self.node(ExprKind::Compare { first: Box::new(first), links }, span)
    }

    /// Parses `in [items]` or `not in [items]`, pushes it as a link, and returns the number of items and the span of the list.
    fn membership_list(&mut self, links: &mut Vec<Link>) -> Result<(usize, Span), ExprError> {
        let negated = self.take(&TokenKind::Not);
        if !self.take(&TokenKind::In) {
            return Err(self.unexpected("`in` after `not`"));
        }
        let opening = self.span();
        if !self.take(&TokenKind::OpenBracket) {
            return Err(self.unexpected("a list such as `[1, 2]` after `in`"));
        }
        let (items, closing) = self.items('[', opening, &TokenKind::CloseBracket)?;
        let span = opening.to(closing);
        if items.is_empty() {
            return Err(ExprError { kind: ExprErrorKind::EmptyList, span });
        }
        let count = items.len();
        links.push(Link::Member { negated, items, span });
        Ok((count, span))
    }

    fn sum(&mut self) -> Parsed {
        let mut left = self.product()?;
        loop {
            let operator = match self.peek() {
                TokenKind::Plus => Arithmetic::Add,
                TokenKind::Minus => Arithmetic::Subtract,
                _ => return Ok(left),
            };
            self.position += 1;
            let right = self.product()?;
            left = self.arithmetic(operator, left, right)?;
        }
    }

    fn product(&mut self) -> Parsed {
        let mut left = self.unary()?;
        loop {
            let operator = match self.peek() {
                TokenKind::Star => Arithmetic::Multiply,
                TokenKind::Slash => Arithmetic::Divide,
                TokenKind::SlashSlash => Arithmetic::FloorDivide,
                TokenKind::Percent => Arithmetic::Modulo,
                _ => return Ok(left),
            };
            self.position += 1;
            let right = self.unary()?;
            left = self.arithmetic(operator, left, right)?;
        }
    }

    fn arithmetic(&mut self, operator: Arithmetic, left: Expr, right: Expr) -> Parsed {
        let span = left.span.to(right.span);
        self.node(ExprKind::Arithmetic { operator, left: Box::new(left), right: Box::new(right) }, span)
    }

    fn unary(&mut self) -> Parsed {
        let start = self.span();
        if !self.take(&TokenKind::Minus) {
            return self.primary();
        }
        // `i64::MIN` needs its sign: its magnitude does not fit into i64.
        if let TokenKind::Int(magnitude) = *self.peek() {
            let span = start.to(self.span());
            let value = 0_i64.checked_sub_unsigned(magnitude).ok_or_else(|| self.too_large(span))?;
            self.position += 1;
            return self.node(ExprKind::Int(value), span);
        }
        let operand = self.nested(Self::unary)?;
        let span = start.to(operand.span);
        self.node(ExprKind::Negate(Box::new(operand)), span)
    }

    fn primary(&mut self) -> Parsed {
        let span = self.span();
        let kind = match self.peek() {
            TokenKind::Int(magnitude) => match i64::try_from(*magnitude) {
                Ok(value) => ExprKind::Int(value),
                Err(_) => return Err(self.too_large(span)),
            },
            TokenKind::Float(value) => ExprKind::Float(*value),
            TokenKind::True => ExprKind::Bool(true),
            TokenKind::False => ExprKind::Bool(false),
            TokenKind::Text(text) => ExprKind::Text(text.clone()),
            TokenKind::Name(name) => {
                let name = name.clone();
                self.position += 1;
                return self.name_or_call(name, span);
            }
            TokenKind::OpenParenthesis => return self.parenthesized(span),
            TokenKind::OpenBracket => return Err(ExprError { kind: ExprErrorKind::MisplacedList, span }),
            _ => return Err(self.unexpected("a value")),
        };
        self.position += 1;
        self.node(kind, span)
    }

    fn parenthesized(&mut self, opening: Span) -> Parsed {
        self.position += 1;
        self.open.push(('(', opening));
        let mut inner = self.nested(Self::expression)?;
        let closing = self.span();
        if !self.take(&TokenKind::CloseParenthesis) {
            return Err(self.unexpected("an operator or `)`"));
        }
        self.open.pop();
        // The span includes the parentheses, so that an error underlines them.
        inner.span = opening.to(closing);
        Ok(inner)
    }

    fn name_or_call(&mut self, name: String, span: Span) -> Parsed {
        let opening = self.span();
        if !self.take(&TokenKind::OpenParenthesis) {
            return self.node(ExprKind::Name(name), span);
        }
        let (arguments, closing) = self.items('(', opening, &TokenKind::CloseParenthesis)?;
        let call = ExprKind::Call { function: name, function_span: span, arguments };
        self.node(call, span.to(closing))
    }

    /// Parses comma-separated expressions up to the closing token; a trailing comma is allowed.
    fn items(
        &mut self,
        sign: char,
        opening: Span,
        closing: &TokenKind,
    ) -> Result<(Vec<Expr>, Span), ExprError> {
        self.open.push((sign, opening));
        let mut items = Vec::new();
        loop {
            let end = self.span();
            if self.take(closing) {
                self.open.pop();
                return Ok((items, end));
            }
            items.push(self.nested(Self::expression)?);
            if !self.take(&TokenKind::Comma) && self.peek() != closing {
                let expected = if sign == '(' { "`,` or `)`" } else { "`,` or `]`" };
                return Err(self.unexpected(expected));
            }
        }
    }

    fn nested(&mut self, inner: fn(&mut Self) -> Parsed) -> Parsed {
        if self.depth == MAX_NESTING {
            let kind = ExprErrorKind::NestingTooDeep { limit: MAX_NESTING };
            return Err(ExprError { kind, span: self.span() });
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn node(&mut self, kind: ExprKind, span: Span) -> Parsed {
        self.count(span)?;
        Ok(Expr { kind, span })
    }

    fn count(&mut self, span: Span) -> Result<(), ExprError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(ExprError { kind: ExprErrorKind::TooLarge { limit: MAX_NODES }, span });
        }
        Ok(())
    }

    fn peek(&self) -> &TokenKind {
        self.tokens.get(self.position).map_or(&TokenKind::End, |token| &token.kind)
    }

    fn span(&self) -> Span {
        let end = Span::new(self.text.len(), self.text.len());
        self.tokens.get(self.position).map_or(end, |token| token.span)
    }

    fn take(&mut self, kind: &TokenKind) -> bool {
        let found = self.peek() == kind;
        self.position += usize::from(found);
        found
    }

    fn too_large(&self, span: Span) -> ExprError {
        ExprError { kind: ExprErrorKind::NumberTooLarge { text: span.of(self.text).to_owned() }, span }
    }

    fn unexpected(&self, expected: &'static str) -> ExprError {
        let span = self.span();
        if self.peek() != &TokenKind::End {
            let found = span.of(self.text).to_owned();
            return ExprError { kind: ExprErrorKind::UnexpectedToken { found, expected }, span };
        }
        match self.open.last() {
            Some((opening, span)) => {
                ExprError { kind: ExprErrorKind::Unclosed { opening: *opening }, span: *span }
            }
            None => ExprError { kind: ExprErrorKind::UnexpectedEnd { expected }, span },
        }
    }
}

fn is_comparison(kind: &TokenKind) -> bool {
    matches!(
        kind,
        TokenKind::EqualEqual
            | TokenKind::NotEqual
            | TokenKind::Less
            | TokenKind::LessEqual
            | TokenKind::Greater
            | TokenKind::GreaterEqual
            | TokenKind::In
            | TokenKind::Not
    )
}
