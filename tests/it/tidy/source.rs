//! A source file for the rules: its lines, its tokens without comments, and its test lines.

use std::{ops::RangeInclusive, str::FromStr as _};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A Rust file.
pub(super) struct Source {
    /// Relative to the root of the workspace, with `/`.
    pub(super) path: String,
    pub(super) lines: Vec<String>,
    pub(super) tokens: Vec<Token>,
    tests: Vec<RangeInclusive<usize>>,
}

/// A word, a punctuation character or a bracket; a literal is only its opening character.
pub(super) struct Token {
    pub(super) line: usize,
    pub(super) text: String,
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> anyhow::Result<Self> {
        let stream = TokenStream::from_str(text).map_err(|error| anyhow::anyhow!("{path}: {error}"))?;
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let whole = path.ends_with("/tests.rs") || path.contains("/tests/");
        let tests = if whole { vec![1..=lines.len()] } else { test_parts(&tokens) };
        Ok(Self { path: path.to_owned(), lines, tokens, tests })
    }

    /// Is this line part of a `#[cfg(test)]` item?
    pub(super) fn is_test(&self, line: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&line))
    }

    /// The tokens from `at` on, as text.
    pub(super) fn words(&self, at: usize) -> impl Iterator<Item = &str> {
        self.tokens.iter().skip(at).map(|token| token.text.as_str())
    }

    /// Are the tokens at `at` these words?
    pub(super) fn stands(&self, at: usize, words: &[&str]) -> bool {
        self.words(at).take(words.len()).eq(words.iter().copied())
    }

    /// Index of the token after the closing bracket that matches the one at `open`.
    pub(super) fn close_of(&self, open: usize) -> usize {
        close_of(&self.tokens, open)
    }

    /// The first word of each path that begins with `root::`, with its line: `a` and `b` in `root::{a, b::c}`. Any
    /// other use of `root` gives its own line and an empty word.
    pub(super) fn imports<'s>(&'s self, root: &'s str) -> Vec<(usize, &'s str)> {
        let mut found = Vec::new();
        for (at, token) in self.tokens.iter().enumerate().filter(|(_, token)| token.text == root) {
            if !self.stands(at + 1, &[":", ":"]) {
                found.push((token.line, ""));
            } else if self.stands(at + 3, &["{"]) {
                let end = self.close_of(at + 3);
                let mut depth = 0;
                for inner in at + 3..end {
                    let (before, token) = (&self.tokens[inner.saturating_sub(1)], &self.tokens[inner]);
                    if depth == 1 && matches!(before.text.as_str(), "{" | ",") && token.text != "}" {
                        found.push((token.line, token.text.as_str()));
                    }
                    match token.text.as_str() {
                        "{" => depth += 1,
                        "}" => depth -= 1,
                        _ => {}
                    }
                }
            } else if let Some(token) = self.tokens.get(at + 3) {
                found.push((token.line, token.text.as_str()));
            }
        }
        found
    }
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                tokens.push(Token { line, text: open.to_owned() });
                flatten(group.stream(), tokens);
                tokens.push(Token { line: group.span_close().start().line, text: close.to_owned() });
            }
            TokenTree::Ident(ident) => tokens.push(Token { line, text: ident.to_string() }),
            TokenTree::Punct(punct) => tokens.push(Token { line, text: punct.as_char().to_string() }),
            TokenTree::Literal(_) => tokens.push(Token { line, text: "\"".to_owned() }),
        }
    }
}

fn close_of(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Lines of the items under `#[cfg(test)]`.
fn test_parts(tokens: &[Token]) -> Vec<RangeInclusive<usize>> {
    let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut parts = Vec::new();
    for at in 0..tokens.len() {
        if !tokens.iter().skip(at).take(attribute.len()).map(|token| token.text.as_str()).eq(attribute) {
            continue;
        }
        let mut end = at + attribute.len();
        while let Some(token) = tokens.get(end) {
            match token.text.as_str() {
                ";" => break,
                "{" => {
                    end = close_of(tokens, end) - 1;
                    break;
                }
                "(" | "[" => end = close_of(tokens, end),
                _ => end += 1,
            }
        }
        let last = tokens.get(end).or(tokens.last()).map_or(0, |token| token.line);
        parts.push(tokens[at].line..=last);
    }
    parts
}
