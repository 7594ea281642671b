-- Drop holds that the worker owns. ARGV[3]: [[queue, [id, ...]], ...] as JSON. Answers how many were dropped.
local dropped = 0
for _, group in ipairs(cjson.decode(ARGV[3])) do
  dropped = dropped + drop(ARGV[2], group[1], group[2])
end
return dropped
