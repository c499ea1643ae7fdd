import torch
import transformers


def make_step():
    config = transformers.GPT2Config(
        n_embd=128,
        n_layer=4,
        n_head=4,
        vocab_size=1000,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config).train()  # or .from_pretrained(...).train()
    tokens = torch.randint(0, 1000, (8, 64))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}

    def loss(model, batch):
        return model(**batch).loss

    return model, loss, batch, torch.optim.AdamW(model.parameters(), lr=5e-5)
