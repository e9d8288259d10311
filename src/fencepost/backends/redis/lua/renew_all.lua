-- Extend locks, or shares of them, each if its holder still has it under its token.
-- KEYS: locks
-- ARGV: for each lock: holder:token, ttl in ms
-- Answers: for each lock 1; or 0 if the holder no longer has it, and nothing changed; or the server's error, as text.
-- needs: clock, cover, extend
local answers = {}
for i, lock in ipairs(KEYS) do
    local done, answer = pcall(extend, lock, ARGV[2 * i - 1], ARGV[2 * i])
    if not done then answer = type(answer) == 'table' and answer.err or tostring(answer) end
    answers[i] = answer
end
return answers
