// Questions to the server of the live page. A newer question of the same kind aborts the one before it.

const PATIENCE = 20; // times that a question is repeated while the server is busy

/** The server has an answer, but it is a reason why there is none. */
export class Refusal extends Error {}

export function server(token) {
  const page = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16)).join("-");
  const asking = new Map();

  /** The answer to a question, or null if a newer one took its place. */
  return async function ask(question, given, onWait = () => {}) {
    asking.get(question)?.abort();
    const own = new AbortController();
    asking.set(question, own);
    try {
      for (let round = 0; ; round++) {
        const response = await fetch(`api/${question}`, {
          method: "POST",
          headers: { "content-type": "application/json", "x-wherewhat-token": token },
          body: JSON.stringify({ page, ...given }),
          signal: own.signal,
        });
        const answer = await response.json();
        if (response.ok) return answer;
        if (response.status === 409) return null;
        if (response.status !== 503 || round >= PATIENCE) throw new Refusal(answer.error);
        onWait(answer.error);
        await new Promise((resolve) => setTimeout(resolve, 400));
      }
    } catch (error) {
      if (error.name === "AbortError") return null;
      if (error instanceof Refusal) throw error;
      throw new Refusal("the server does not answer: it was stopped, or the connection is lost");
    } finally {
      if (asking.get(question) === own) asking.delete(question);
    }
  };
}
