use std::collections::BTreeSet;

use crate::{
    convert::WireError,
    model::{INPUT_BYTES_MAX, INPUTS_PER_ITEM_MAX, ItemInput, SecretName},
    wire,
};

impl From<ItemInput> for wire::ItemInput {
    fn from(input: ItemInput) -> Self {
        Self { name: input.name.into(), value: input.value, secret: input.secret }
    }
}

impl TryFrom<wire::ItemInput> for ItemInput {
    type Error = WireError;

    fn try_from(wire: wire::ItemInput) -> Result<Self, WireError> {
        if wire.value.len() > INPUT_BYTES_MAX {
            return Err(WireError::new("input.value", "too long"));
        }
        Ok(Self {
            name: SecretName::new(wire.name).map_err(|_| WireError::new("input.name", "not a DNS-1123 label"))?,
            value: wire.value,
            secret: wire.secret,
        })
    }
}

impl TryFrom<wire::FetchSecretsResponse> for Vec<ItemInput> {
    type Error = WireError;

    fn try_from(wire: wire::FetchSecretsResponse) -> Result<Self, WireError> {
        if wire.inputs.len() > INPUTS_PER_ITEM_MAX {
            return Err(WireError::new("inputs", "too many"));
        }
        let inputs: Self = wire.inputs.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
        let names: BTreeSet<&SecretName> = inputs.iter().map(|input| &input.name).collect();
        if names.len() < inputs.len() {
            return Err(WireError::new("inputs", "a name twice"));
        }
        Ok(inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(inputs: &[(&str, usize)]) -> Result<Vec<ItemInput>, WireError> {
        let wire = |(name, bytes): &(&str, usize)| wire::ItemInput {
            name: (*name).to_owned(),
            value: vec![b'x'; *bytes],
            secret: true,
        };
        wire::FetchSecretsResponse { inputs: inputs.iter().map(wire).collect() }.try_into()
    }

    #[test]
    fn inputs_are_checked() {
        let most: Vec<String> = (0..INPUTS_PER_ITEM_MAX).map(|n| format!("n{n}")).collect();
        let most: Vec<(&str, usize)> = most.iter().map(|name| (name.as_str(), INPUT_BYTES_MAX)).collect();
        assert_eq!(answer(&most).map(|inputs| inputs.len()), Ok(INPUTS_PER_ITEM_MAX));
        for (bad, field) in [
            ([most, vec![("one-more", 1)]].concat(), "inputs"),
            (vec![("a", 1), ("a", 2)], "inputs"),
            (vec![("a", INPUT_BYTES_MAX + 1)], "input.value"),
            (vec![("../a", 1)], "input.name"),
            (vec![("", 1)], "input.name"),
        ] {
            assert_eq!(answer(&bad).expect_err("refused").field, field);
        }
    }

    #[test]
    fn a_value_is_in_no_debug_text() {
        let inputs = answer(&[("a", 9)]).expect("good");
        assert!(!format!("{inputs:?}").contains("xx"), "{inputs:?}");
    }
}
