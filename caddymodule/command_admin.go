package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddyserver/caddy/v2"
)

// exitRefused says that the fleet could not do what was asked.
const exitRefused = 3

// errRefused marks answers that say no, as opposed to no answer.
var errRefused = errors.New("refused")

// askAdmin asks the admin API that the flags name, reads its answer into v, and
// returns it as it came, too. body is nil for what is only read.
func askAdmin(fl caddycmd.Flags, method, path string, body, v any) ([]byte, error) {
	addr, err := caddycmd.DetermineAdminAPIAddress(fl.String("address"), nil, fl.String("config"), fl.String("adapter"))
	if err != nil {
		return nil, fmt.Errorf("looking for the admin address: %w", err)
	}
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(text)
	}
	resp, err := caddycmd.AdminAPIRequest(addr, method, path, nil, content)
	if err != nil {
		return nil, adminFault(addr, path, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return nil, fmt.Errorf("reading the answer of the admin API at %s: %w", addr, err)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, fmt.Errorf("the admin API at %s did not answer as a fleet does: %w", addr, err)
	}
	return bytes.TrimSpace(raw), nil
}

// adminFault says what an error of the admin API means.
func adminFault(addr, path string, err error) error {
	status, said := adminSaid(err)
	said = printable(said)
	switch {
	case status == http.StatusNotFound && strings.HasPrefix(said, "no "):
		return fmt.Errorf("%s", said)
	case status == http.StatusNotFound && strings.HasPrefix(path, "/slotlog/"):
		return fmt.Errorf("asking the admin API at %s: %s (the Caddy that answers there reads no log)", addr, said)
	case status == http.StatusNotFound:
		return fmt.Errorf("asking the admin API at %s: %s (the Caddy that answers there has no fleet)", addr, said)
	case status == http.StatusConflict, status == http.StatusBadGateway, status == http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %s", errRefused, said)
	case status != 0:
		return fmt.Errorf("the admin API at %s answered %d: %s", addr, status, said)
	}
	return fmt.Errorf("asking the admin API at %s: %s (is Caddy running there? If its admin API listens elsewhere, name it with --address or --config)", addr, said)
}

// adminSaid takes the admin API's answer out of an error, which Caddy makes of a status
// of 400 or more: "caddy responded with error: HTTP 409: " and the body. status 0: it
// did not answer.
func adminSaid(err error) (status int, said string) {
	said = err.Error()
	_, answer, ok := strings.Cut(said, "HTTP ")
	if !ok || !strings.HasPrefix(said, "caddy responded with error") {
		return 0, said
	}
	code, body, ok := strings.Cut(answer, ": ")
	status, err = strconv.Atoi(code)
	if !ok || err != nil {
		return 0, said
	}
	var words struct{ Error string }
	if json.Unmarshal([]byte(body), &words) == nil && words.Error != "" {
		body = words.Error
	}
	return status, strings.TrimSpace(body)
}

// exitOf is the exit code of a command that asked for an action.
func exitOf(err error) int {
	switch {
	case err == nil:
		return caddy.ExitCodeSuccess
	case errors.Is(err, errRefused):
		return exitRefused
	}
	return caddy.ExitCodeFailedStartup
}

// show prints an answer: as it came with --json, else in words.
func show(fl caddycmd.Flags, raw []byte, words func(io.Writer) error) error {
	var err error
	if fl.Bool("json") {
		_, err = fmt.Fprintf(os.Stdout, "%s\n", printableJSON(raw))
	} else {
		err = words(os.Stdout)
	}
	if err != nil {
		return fmt.Errorf("printing the answer: %w", err)
	}
	return nil
}

// post asks for an action.
func post(fl caddycmd.Flags, path string, v any) ([]byte, error) {
	return askAdmin(fl, http.MethodPost, path, struct{}{}, v)
}
