// Package tidegate limits the requests of net/http by a Tidegate server:
//
//	limited := tidegate.Limit{Server: "http://127.0.0.1:8080", Name: "per-user", Key: user, FailOpen: true}
//	http.Handle("/", limited.Wrap(handler))
package tidegate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"time"
)

// Limit is a limit of a server. Timeout is 100 ms if it is zero.
type Limit struct {
	Server, Name, Token string
	Key                 func(*http.Request) string
	Timeout             time.Duration
	FailOpen            bool
}

type decision struct {
	Allowed    bool   `json:"allowed"`
	Reason     string `json:"reason"`
	RetryAfter *int64 `json:"retry_after_ms"`
	Delay      int64  `json:"delay_ms"`
	Detail     string `json:"detail"`
}

func (l Limit) ask(client *http.Client, key string) (told decision, err error) {
	body, _ := json.Marshal(map[string]string{"limit": l.Name, "key": key})
	question, err := http.NewRequest("POST", l.Server+"/v1/acquire", bytes.NewReader(body))
	if err != nil {
		return told, err
	}
	if l.Token != "" {
		question.Header.Set("Authorization", "Bearer "+l.Token)
	}
	answer, err := client.Do(question)
	if err != nil {
		return told, err
	}
	defer answer.Body.Close()
	err = json.NewDecoder(answer.Body).Decode(&told)
	if err == nil && answer.StatusCode != 200 && answer.StatusCode != 429 {
		err = fmt.Errorf("%s: %s", answer.Status, told.Detail)
	}
	return told, err
}

// Wrap limits the requests to a handler.
func (l Limit) Wrap(next http.Handler) http.Handler {
	if l.Timeout == 0 {
		l.Timeout = 100 * time.Millisecond
	}
	client := &http.Client{Timeout: l.Timeout}
	refuse := func(w http.ResponseWriter, status int, reason string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(map[string]string{"reason": reason})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		told, err := l.ask(client, l.Key(r))
		switch {
		case err != nil && !l.FailOpen:
			log.Printf("tidegate: no decision: %v", err)
			refuse(w, 503, "no decision")
		case err != nil:
			log.Printf("tidegate: no decision: %v", err)
			next.ServeHTTP(w, r)
		case !told.Allowed:
			if told.RetryAfter != nil {
				w.Header().Set("Retry-After", fmt.Sprint((*told.RetryAfter+999)/1000))
			}
			refuse(w, 429, told.Reason)
		default:
			time.Sleep(time.Duration(told.Delay) * time.Millisecond)
			next.ServeHTTP(w, r)
		}
	})
}
