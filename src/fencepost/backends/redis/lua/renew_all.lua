-- Extend locks, or shares of them, each if it is still its holder's under its token.
-- KEYS: locks
-- ARGV: for each lock: holder:token, ttl in ms
-- Answers: for each lock 1, or 0 if it was not, and nothing changed; or what the server has against this lock, as text.
-- needs: clock, cover, extend
local answers = {}
for i, lock in ipairs(KEYS) do
    local done, answer = pcall(extend, lock, ARGV[2 * i - 1], ARGV[2 * i])
    if not done then answer = type(answer) == 'table' and answer.err or tostring(answer) end
    answers[i] = answer
end
return answers
