"""A tokenizer whose tokens are characters."""


class Letters:
    chat_template = "yes"

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return [ord(c) for c in text]

    def apply_chat_template(self, messages, tokenize, add_generation_prompt, date_string):
        assert not tokenize and add_generation_prompt
        return f"<user>{messages[0]['content']}<assistant>"
