package slotlog

import (
	"strings"
	"testing"
)

// sampleLines are one line of each kind that each era prints, with what it says. The
// values are invented, the words are those of the servers.
var sampleLines = []struct {
	era, line string
	before    []int  // numbers of lines on which its meaning depends
	want      string // its events; empty: none
	unknown   bool
}{
	1:  {"E8", `0.12.345.678 I slot get_availabl: id  3 | task -1 | selected slot by LRU, t_last = -1`, nil, "idle slot 3 own", false},
	2:  {"E8", `0.12.345.701 I slot get_availabl: id  0 | task -1 | selected slot by LCP similarity, f_sim_best = 0.975 (> 0.100 thold), f_keep = 0.998`, nil, "idle slot 0 share 0.975 kept 0.998 own", false},
	3:  {"E8", `0.12.345.702 I slot get_availabl: id  2 | task 41 | selected slot by id (2)`, nil, "busy slot 2 task 41", false},
	4:  {"E8", `0.12.345.790 I slot launch_slot_: id  3 | task 42 | processing task, is_child = 0`, nil, "launch slot 3 task 42", false},
	5:  {"E8", `0.12.345.791 I slot launch_slot_: id 10 | task 43 | processing task, is_child = 1`, nil, "launch slot 10 task 43", false},
	6:  {"E8", `0.15.901.234 I slot print_timing: id  3 | task 42 | prompt processing, n_tokens =  16385, progress = 0.85, t =  13.94 s / 1175.06 tokens per second`, nil, "prompt slot 3 task 42 tokens 16385 share 0.85 own", false},
	7:  {"E8", `0.18.901.234 I slot print_timing: id  3 | task 42 | n_gen =    663, tg = 110.43 t/s, tg_3s = 109.88 t/s`, nil, "running slot 3 task 42 tokens 663 rate 109.88 mean 110.43", false},
	8:  {"E7", `0.18.901.234 I slot print_timing: id  3 | task 42 | n_decoded =    663, tg = 110.43 t/s, tg_3s = 109.88 t/s`, nil, "running slot 3 task 42 tokens 663 rate 109.88 mean 110.43", false},
	9:  {"E6", `0.18.901.234 I slot print_timing: id  3 | task 42 | n_decoded =    663, tg = 110.43 t/s`, nil, "running slot 3 task 42 tokens 663 rate 110.43 mean 110.43", false},
	10: {"E8", `0.20.901.230 I slot print_timing: id  3 | task 42 | prompt eval time =    3912.44 ms /  4096 tokens (    0.96 ms per token,  1046.92 tokens per second)`, nil, "prefill_timing slot 3 task 42 tokens 4096 rate 1046.92", false},
	11: {"E8", `0.20.901.231 I slot print_timing: id  3 | task 42 |        eval time =     697.41 ms /    90 tokens (    7.84 ms per token,   127.62 tokens per second)`, nil, "timing slot 3 task 42 tokens 90 rate 127.62", false},
	12: {"E8", `0.20.901.232 I slot print_timing: id  3 | task 42 |       total time =    4609.85 ms /  4186 tokens`, nil, "frame slot 3 task 42", false},
	13: {"E8", `0.20.901.233 I slot print_timing: id  3 | task 42 |    graphs reused =        251`, nil, "frame slot 3 task 42", false},
	14: {"E8", `0.20.901.234 I slot print_timing: id  3 | task 42 | draft acceptance = 0.39850 ( 1331 accepted /  3340 generated), mean len =  2.59`, nil, "draft slot 3 task 42 tokens 1331 count 3340", false},
	15: {"E8", `0.20.901.250 I slot      release: id  3 | task 42 | stop processing: n_tokens = 4185, truncated = 0`, nil, "release slot 3 task 42 tokens 4185", false},
	16: {"E8", `0.20.901.251 W slot   operator(): id  3 | task 42 | slot context shift, n_keep = 0, n_left = 4095, n_discard = 2047`, nil, "shift slot 3 task 42", false},
	17: {"E8", `0.20.901.252 W srv          stop: cancel task, id_task = 42`, nil, "cancel task 42", false},
	18: {"E8", `0.20.901.253 E srv    send_error: task id = 42, error: the request exceeds the available context size`, nil, "failed task 42 failure context_exceeded", false},
	19: {"E8", `0.20.901.254 W srv  try_clear_id: purging slot 1 with 2048 tokens`, nil, "cleared slot 1", false},
	20: {"E8", `0.00.377.734 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 4096, kv_unified = 'true'`, nil, "lanes tokens 4096 lanes 4 pool 2", false},
	21: {"E8", `5.00.021.840 I srv  handle_sleep: server is entering sleeping state`, nil, "sleeping", false},
	22: {"E8", `5.00.021.841 I que    start_loop: entering sleeping state`, nil, "sleeping", false},
	23: {"E8", `0.00.001.000 I srv          load: spawning server instance with name=qwen3-8b on port 53409`, nil, "reset port 53409; model port 53409 model qwen3-8b; loading port 53409", false},
	24: {"E8", `0.00.002.000 I srv  proxy_reques: proxying request to model qwen3-8b on port 53409`, nil, "model port 53409 model qwen3-8b", false},
	25: {"E8", `[53409] 3.24.875.501 I slot launch_slot_: id  0 | task 533 | processing task, is_child = 0`, nil, "launch port 53409 slot 0 task 533", false},
	26: {"E8", `[ 8081] 3.24.875.501 I slot      release: id  0 | task 533 | stop processing: n_tokens = 218, truncated = 0`, nil, "release port 8081 slot 0 task 533 tokens 218", false},
	27: {"E8", `15.00.000.000 I srv    operator(): instance name=qwen3-8b exited with status 0`, []int{24}, "gone port 53409", false},
	28: {"E8", `[53409] cmd_child_to_router:state:{"state":"ready","payload":{}}`, nil, "ready port 53409", false},
	29: {"E8", `[53409] `, nil, "", false},
	30: {"E8", "\x1b[0m\x1b[34m0.12.345.790\x1b[0m \x1b[32mI \x1b[0mslot launch_slot_: id  3 | task 42 | processing task, is_child = 0", nil, "launch slot 3 task 42", false},
	31: {"E8", `2026-07-28T20:08:40.123229-04:00 t0 llama-server[1686919]: [42751] 107.33.446.044 I slot get_availabl: id  0 | task -1 | selected slot by LCP similarity, sim_best = 1.000 (> 0.100 thold), f_keep = 0.999`, nil, "idle port 42751 slot 0 share 1 kept 0.999 own", false},
	32: {"E8", `llama-cpp       | [51429] 0.19.834.943 I slot      release: id  1 | task 0 | stop processing: n_tokens = 1618, truncated = 0`, nil, "release port 51429 slot 1 task 0 tokens 1618", false},
	33: {"E8", `{"log":"0.12.345.790 I slot launch_slot_: id  3 | task 42 | processing task, is_child = 0\n","stream":"stderr","time":"2026-09-20T10:11:12.123456789Z"}`, nil, "launch slot 3 task 42", false},
	34: {"E8", `2026-09-20T10:11:12.123456789Z stderr F 0.12.345.790 I slot      release: id  3 | task 42 | stop processing: n_tokens = 99, truncated = 0`, nil, "release slot 3 task 42 tokens 99", false},
	35: {"E9", `{"type":"log","time":12345790,"level":"info","msg":"slot launch_slot_: id  3 | task 42 | processing task, is_child = 0\n"}`, nil, "launch slot 3 task 42", false},
	36: {"E9", `{"type":"log","time":12345791,"level":"none","msg":"[53409] {\"type\":\"log\",\"time\":204875501,\"level\":\"info\",\"msg\":\"slot      release: id  0 | task 533 | stop processing: n_tokens = 218, truncated = 0\\n\"}\n"}`, nil, "release port 53409 slot 0 task 533 tokens 218", false},
	37: {"E5", `slot get_availabl: id  0 | task -1 | selected slot by LCP similarity, sim_best = 0.995 (> 0.100 thold), f_keep = 1.000`, nil, "idle slot 0 share 0.995 kept 1 own", false},
	38: {"E5", `slot launch_slot_: id  0 | task -1 | sampler chain: logits -> top-k -> dist `, nil, "idle slot 0", false},
	39: {"E5", `slot launch_slot_: id  0 | task 124 | processing task`, nil, "launch slot 0 task 124", false},
	40: {"E5", `slot update_slots: id  0 | task 124 | new prompt, n_ctx_slot = 32768, n_keep = 0, task.n_tokens = 1360`, nil, "prompt_size slot 0 task 124 tokens 1360 count 32768 own", false},
	41: {"E5", `slot update_slots: id  0 | task 124 | n_tokens = 848, memory_seq_rm [848, end)`, nil, "cached slot 0 task 124 tokens 848", false},
	42: {"E5", `slot update_slots: id  0 | task 124 | prompt processing progress, n_tokens = 1360, batch.n_tokens = 512, progress = 1.000000`, nil, "prompt slot 0 task 124 tokens 1360 share 1", false},
	43: {"E5", `slot update_slots: id  0 | task 124 | prompt done, n_tokens = 1360, batch.n_tokens = 512`, nil, "prefilled slot 0 task 124 tokens 1360", false},
	44: {"E5", `slot print_timing: id  0 | task 124 | `, []int{39}, "ending slot 0 task 124", false},
	45: {"E5", `prompt eval time =    5093.47 ms /  1360 tokens (    3.75 ms per token,   267.01 tokens per second)`, []int{39, 44}, "prefill_timing slot 0 task 124 tokens 1360 rate 267.01", false},
	46: {"E5", `       eval time =     319.58 ms /    10 tokens (   31.96 ms per token,    31.29 tokens per second)`, []int{39, 44, 45}, "timing slot 0 task 124 tokens 10 rate 31.29", false},
	47: {"E5", `      total time =    5413.05 ms /  1370 tokens`, []int{39, 44}, "", false},
	48: {"E5", `draft acceptance rate = 0.57576 (  171 accepted /   297 generated)`, []int{39, 44, 46}, "draft slot 0 task 124 tokens 171 count 297", false},
	49: {"E5", `slot      release: id  0 | task 124 | stop processing: n_tokens = 1369, truncated = 0`, nil, "release slot 0 task 124 tokens 1369", false},
	50: {"E5", `srv  update_slots: all slots are idle`, nil, "all_idle", false},
	51: {"E5", `srv  log_server_r: done request: POST /v1/chat/completions 10.8.0.6 200`, nil, "", false},
	52: {"E5", `slot process_sing: id  1 | task -1 | saving idle slot to prompt cache`, nil, "idle slot 1", false},
	53: {"E5", `slot prompt_clear: id  1 | task -1 | clearing prompt with 656 tokens`, nil, "cleared slot 1", false},
	54: {"E4", `slot get_availabl: id  0 | task 836 | selected slot by LRU, t_last = 168504210124`, nil, "idle slot 0 task 836 own", false},
	55: {"E4", `slot launch_slot_: id  0 | task 845 | processing task`, nil, "launch slot 0 task 845", false},
	56: {"E4", `slot update_slots: id  0 | task 845 | kv cache rm [256, end)`, nil, "cached slot 0 task 845 tokens 256", false},
	57: {"E4", `slot update_slots: id  0 | task 845 | prompt processing progress, n_past = 512, n_tokens = 256, progress = 0.572067`, nil, "prompt slot 0 task 845 tokens 512 share 0.572067", false},
	58: {"E4", `slot      release: id  0 | task 845 | stop processing: n_past = 1011, truncated = 0`, nil, "release slot 0 task 845 tokens 1011", false},
	59: {"E4", `slot print_timing: id  0 | task 845 | `, []int{55, 58}, "frame slot 0 task 845", false},
	60: {"E4", "\r       eval time =   40157.40 ms /   327 tokens (  122.81 ms per token,     8.14 tokens per second)", []int{55, 58, 59}, "late slot 0 task 845 tokens 327 rate 8.14", false},
	61: {"E4", `request: GET /health 127.0.0.1 200`, nil, "", false},
	62: {"E3", `{"tid":"140137934626816","timestamp":1713130052,"level":"INFO","function":"launch_slot_with_task","line":1063,"msg":"slot is processing task","id_slot":3,"id_task":52155}`, nil, "launch slot 3 task 52155", false},
	63: {"E3", `{"tid":"140137934626816","timestamp":1713130052,"level":"INFO","function":"print_timings","line":337,"msg":"generation eval time =    3559.27 ms /    25 runs   (  142.37 ms per token,     7.02 tokens per second)","id_slot":3,"id_task":52155,"t_token_generation":3559.272,"n_decoded":25,"t_token":142.37088,"n_tokens_second":7.023908259891348}`, nil, "timing slot 3 task 52155 tokens 25 rate 7.02", false},
	64: {"E3", `{"tid":"140137934626816","timestamp":1713130052,"level":"INFO","function":"update_slots","line":1794,"msg":"slot released","id_slot":3,"id_task":52155,"n_ctx":1536,"n_past":323,"n_system_tokens":0,"n_cache_tokens":323,"truncated":false}`, nil, "release slot 3 task 52155 tokens 323", false},
	65: {"E3", `INFO [   launch_slot_with_task] slot is processing task | tid="140137934626816" timestamp=1713130052 id_slot=0 id_task=1`, nil, "launch slot 0 task 1", false},
	66: {"E3", `INFO [                 release] slot released | tid="140137934626816" timestamp=1713130052 id_slot=0 id_task=1 n_past=1011 truncated=false`, nil, "release slot 0 task 1 tokens 1011", false},
	67: {"E3", `INFO [     process_single_task] slot data | tid="140137934626816" timestamp=1713130052 id_task=7 n_idle_slots=1 n_processing_slots=3`, nil, "", false},
	68: {"E2", `{"function":"launch_slot_with_data","level":"INFO","line":802,"msg":"slot is processing task","slot_id":0,"task_id":9,"tid":"140","timestamp":1708900000}`, nil, "launch slot 0 task 9", false},
	69: {"E1", `slot 0 is processing [task id: 12]`, nil, "launch slot 0 task 12", false},
	70: {"E1", `[1706462782] slot 0 is processing [task id: 12]`, nil, "launch slot 0 task 12", false},
	71: {"E1", `slot 0 released (513 tokens in cache)`, []int{69}, "release slot 0 task 12 tokens 513", false},
	72: {"E1", `print_timings:        eval time =     410.11 ms /    21 runs   (   19.53 ms per token,    51.21 tokens per second)`, []int{69}, "timing slot 0 task 12 tokens 21 rate 51.21", false},
	73: {"IK", `INFO [   launch_slot_with_task] slot is processing task | tid="140137934626816" timestamp=1713130052 id_slot=0 id_task=5`, nil, "launch slot 0 task 5", false},
	74: {"IK", `slot print_timing: id  0 | task 5 | `, []int{73}, "ending slot 0 task 5", false},
	75: {"IK", `INFO [           release_slots] slot released | tid="140137934626816" timestamp=1713130052 id_slot=0 id_task=5 n_ctx=32768 n_past=812 n_system_tokens=0 n_cache_tokens=812 truncated=false`, nil, "release slot 0 task 5 tokens 812", false},
	76: {"neg", `que    start_loop: processing task, id = 12`, nil, "", false},
	77: {"neg", `0.00.000.001 D slot   operator(): id  0 | task 5 | n_gen = 17, n_remaining = 83, next token:   198 ''`, nil, "step slot 0 task 5 tokens 17", false},
	78: {"neg", `0.00.000.005 W srv    operator(): stop on unknown stream session, conv_id=x`, nil, "", false},
	79: {"neg", `slot      release: id  0 | task 42 | stop processing: n_tokens = 1, truncated = 0`, []int{4}, "", true},
	80: {"neg", `slot available, loading queued model name=x`, nil, "", true},
}

func TestEachSampleLineSaysWhatItMeans(t *testing.T) {
	for i, s := range sampleLines {
		if s.line == "" {
			continue
		}
		r := NewReader(SourceOptions{})
		for _, n := range s.before {
			r.Feed([]byte(sampleLines[n].line+"\n"), noon, func(Event) {})
		}
		unknown := r.Stats().Unknown
		var got []string
		r.Feed([]byte(s.line+"\n"), noon, func(e Event) { got = append(got, eventWords(e)) })
		if got := strings.Join(got, "; "); got != s.want {
			t.Errorf("%d (%s) %q:\n got %s\nwant %s", i, s.era, s.line, got, s.want)
		}
		if got := r.Stats().Unknown > unknown; got != s.unknown {
			t.Errorf("%d (%s) %q counted as unknown: got %v, want %v", i, s.era, s.line, got, s.unknown)
		}
	}
	if got := len(sampleLines); got != 81 {
		t.Errorf("lines: got %d, want 80, numbered from 1", got-1)
	}
}
