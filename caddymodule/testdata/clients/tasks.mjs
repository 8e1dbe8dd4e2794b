// Does what it is told, a task a line, with the library that the first argument names,
// and says in a line of JSON what came of it. The second argument is the address.
import { createInterface } from "node:readline";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";

const [library, url] = process.argv.slice(2);

const openai = {
	client: (key) => new OpenAI({ baseURL: `${url}/v1`, apiKey: key }),
	failure: (e) => (e instanceof OpenAI.APIError ? `${e.status ? `${e.status} ` : ""}${e.code}` : String(e)),

	async answer(client, t) {
		const more = t.tools || t.task === "schema" ? {} : { ignore_eos: true };
		if (t.task.startsWith("responses")) {
			const ask = { model: t.model, input: t.prompt, max_output_tokens: t.tokens, temperature: 0, ...more };
			if (t.task === "responses") {
				const r = await client.responses.create(ask);
				return `${r.output_text}|${r.status}|${r.usage.output_tokens}`;
			}
			let text = "";
			for await (const e of await client.responses.create({ ...ask, stream: true })) {
				if (e.type === "response.output_text.delta") text += e.delta;
				if (e.type === "response.completed" || e.type === "response.incomplete") {
					return `${text}|${e.response.status}|${e.response.usage.output_tokens}`;
				}
			}
			return "error: no end came";
		}
		if (t.task === "embeddings") {
			const r = await client.embeddings.create({ model: t.model, input: ["a", "b"] });
			return `${r.data.map((d) => d.embedding.join(" ")).join("|")}|${r.data.length}`;
		}
		const ask = {
			model: t.model,
			messages: [{ role: "user", content: t.prompt }],
			max_tokens: t.tokens,
			temperature: 0,
			...more,
		};
		if (t.tools) {
			ask.tools = [{ type: "function", function: { name: "get_weather", parameters: t.schema } }];
			ask.tool_choice = "required";
		}
		if (t.task === "schema") {
			ask.response_format = { type: "json_schema", json_schema: { name: "weather", schema: t.schema, strict: true } };
		}
		const show = (c) => {
			const [choice] = c.choices;
			const calls = (choice.message.tool_calls ?? []).map((x) => `${x.function.name} ${x.function.arguments};`).join("");
			return `${choice.message.content ?? ""}|${calls}|${choice.finish_reason}|${c.usage?.completion_tokens}`;
		};
		if (!t.streams) return show(await client.chat.completions.create(ask));
		const stream = client.chat.completions.stream({ ...ask, stream_options: { include_usage: true } });
		let chunks = 0;
		for await (const _ of stream) {
			if (t.task === "abort" && ++chunks === 3) {
				stream.abort();
				return "aborted";
			}
		}
		return show(await stream.finalChatCompletion());
	},
};

const anthropic = {
	client: (key) => new Anthropic({ baseURL: url, apiKey: key }),
	failure: (e) => (e instanceof Anthropic.APIError ? `${e.status} ${e.error?.error?.type}` : String(e)),

	async answer(client, t) {
		const messages = [{ role: "user", content: t.prompt }];
		if (t.task === "count") {
			const r = await client.messages.countTokens({ model: t.model, messages });
			return `${r.input_tokens}|`;
		}
		const ask = { model: t.model, messages, max_tokens: t.tokens, temperature: 0 };
		if (t.tools) {
			ask.tools = [{ name: "get_weather", input_schema: t.schema }];
			ask.tool_choice = { type: "any" };
		} else if (!t.thinking) {
			ask.ignore_eos = true;
		}
		if (t.thinking) ask.thinking = { type: "enabled", budget_tokens: 1024 };
		const show = (m) => {
			const content = m.content.map((b) => {
				if (b.type === "text") return b.text;
				if (b.type === "thinking") return `[${b.thinking}]`;
				return `${b.name} ${JSON.stringify(b.input)};`;
			});
			return `${content.join("")}|${m.stop_reason}|${m.usage.output_tokens}`;
		};
		if (!t.streams) return show(await client.messages.create(ask));
		const stream = client.messages.stream(ask);
		let deltas = 0;
		for await (const e of stream) {
			if (t.task === "abort" && e.type === "content_block_delta" && ++deltas === 3) {
				stream.abort();
				return "aborted";
			}
		}
		return show(await stream.finalMessage());
	},
};

const api = { openai, anthropic }[library];
for await (const line of createInterface({ input: process.stdin })) {
	const t = JSON.parse(line);
	let out;
	try {
		out = await api.answer(api.client(t.secret), t);
	} catch (e) {
		out = `error ${api.failure(e)}`;
	}
	console.log(JSON.stringify(out));
}
